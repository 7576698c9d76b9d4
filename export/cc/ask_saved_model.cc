// Answers from a SavedModel through TensorFlow's C++ loader, with no Python in the process.
//
//   ask_saved_model DIRECTORY REQUESTS ANSWERS [OP_LIBRARY ...]
//
// LoadSavedModel and SignatureDef are what tensorflow_model_server runs, too. OP_LIBRARY are shared objects that hold
// the ops outside TensorFlow's own. The files are the ones of export/cc_check.py; integers are little-endian:
//
//   REQUESTS  uint32 count, then each: text signature, uint32 inputs, then each input: text name, text TensorProto
//   ANSWERS   uint32 count, then each: uint32 outputs, then each output: text name, text TensorProto
//   text      uint64 bytes, then the bytes
//
// Every error ends the program with status 1 and one line on standard error.

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session.h"

namespace {

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << "ask_saved_model: " << message << std::endl;
  std::exit(1);
}

void Require(const absl::Status& status, const std::string& where) {
  if (!status.ok()) Fail(where + ": " + std::string(status.message()));
}

// === Files ===

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) Fail(path + ": cannot be read");
    std::ostringstream bytes;
    bytes << file.rdbuf();
    bytes_ = bytes.str();
  }

  uint64_t Number(int num_bytes) {
    const std::string bytes = Bytes(num_bytes);
    uint64_t number = 0;
    for (int i = num_bytes - 1; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
    return number;
  }

  std::string Text() { return Bytes(Number(8)); }

 private:
  std::string Bytes(uint64_t count) {
    if (count > bytes_.size() - position_) Fail(path_ + ": ends too early");
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }

  std::string path_;
  std::string bytes_;
  uint64_t position_ = 0;
};

void AppendNumber(uint64_t number, int num_bytes, std::string* out) {
  for (int i = 0; i < num_bytes; ++i) out->push_back(static_cast<char>(number >> 8 * i & 0xff));
}

void AppendText(const std::string& text, std::string* out) {
  AppendNumber(text.size(), 8, out);
  out->append(text);
}

// === Requests ===

tensorflow::Tensor ParseTensor(const std::string& bytes, const std::string& where) {
  tensorflow::TensorProto proto;
  tensorflow::Tensor tensor;
  if (!proto.ParseFromString(bytes) || !tensor.FromProto(proto)) Fail(where + ": not a TensorProto");
  return tensor;
}

// Runs the request that stands next in `requests`, and appends its answer to `out`.
void Answer(const tensorflow::SavedModelBundle& bundle, Reader* requests, std::string* out) {
  const std::string signature_name = requests->Text();
  const auto& signatures = bundle.GetSignatures();
  const auto signature = signatures.find(signature_name);
  if (signature == signatures.end()) Fail("there is no signature " + signature_name);
  std::vector<std::pair<std::string, tensorflow::Tensor>> feeds;
  for (uint64_t left = requests->Number(4); left > 0; --left) {
    const std::string name = requests->Text();
    const auto input = signature->second.inputs().find(name);
    if (input == signature->second.inputs().end()) Fail(signature_name + ": there is no input " + name);
    feeds.emplace_back(input->second.name(), ParseTensor(requests->Text(), signature_name + ", " + name));
  }
  std::vector<std::string> names, fetches;
  for (const auto& output : signature->second.outputs()) {
    names.push_back(output.first);
    fetches.push_back(output.second.name());
  }
  std::vector<tensorflow::Tensor> values;
  Require(bundle.GetSession()->Run(feeds, fetches, {}, &values), signature_name);
  AppendNumber(values.size(), 4, out);
  for (size_t i = 0; i < values.size(); ++i) {
    tensorflow::TensorProto proto;
    values[i].AsProtoField(&proto);  // not AsProtoTensorContent: Python does not read its form of strings
    AppendText(names[i], out);
    AppendText(proto.SerializeAsString(), out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);  // standard error is for the one line
  if (argc < 4) Fail("expected DIRECTORY REQUESTS ANSWERS [OP_LIBRARY ...]");
  for (int i = 4; i < argc; ++i) {
    void* handle = nullptr;
    Require(tensorflow::Env::Default()->LoadDynamicLibrary(argv[i], &handle), argv[i]);
  }
  tensorflow::SessionOptions options;
  (*options.config.mutable_device_count())["GPU"] = 0;  // a GPU rounds otherwise
  tensorflow::SavedModelBundle bundle;
  Require(tensorflow::LoadSavedModel(options, tensorflow::RunOptions(), argv[1], {"serve"}, &bundle), argv[1]);
  Reader requests(argv[2]);
  std::string out;
  const uint64_t count = requests.Number(4);
  AppendNumber(count, 4, &out);
  for (uint64_t i = 0; i < count; ++i) Answer(bundle, &requests, &out);
  std::ofstream file(argv[3], std::ios::binary);
  file.write(out.data(), static_cast<std::streamsize>(out.size()));
  file.flush();
  if (!file) Fail(std::string(argv[3]) + ": cannot be written");
  return 0;
}
