// Answers from a SavedModel through TensorFlow's C++ loader, with no Python in the process.
//
//   ask_saved_model DIRECTORY REQUESTS ANSWERS [OP_LIBRARY ...]
//
// LoadSavedModel and SignatureDef are what tensorflow_model_server runs, too. REQUESTS and ANSWERS are files as
// export/verification/runner.py describes them. OP_LIBRARY are shared objects with the ops outside TensorFlow's own.
//
// With - for REQUESTS and ANSWERS, standard input names them instead, on two lines for each pair of files, so that
// a loaded model answers in turns with other programs. Each pair prints the seconds that its requests ran.
//
// Every error ends the program with status 1 and one line on standard error.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
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

using Seconds = std::chrono::duration<double>;

// Runs one request and writes its answer; returns the time of the run.
Seconds Answer(const tensorflow::SavedModelBundle& bundle, const tensorflow::NodeDef& request,
               tensorflow::NodeDef* answer) {
  const std::string& signature_name = request.op();
  const auto& signatures = bundle.GetSignatures();
  const auto signature = signatures.find(signature_name);
  if (signature == signatures.end()) Fail("there is no signature " + signature_name);
  std::vector<std::pair<std::string, tensorflow::Tensor>> feeds;
  for (const auto& [name, value] : request.attr()) {
    const auto input = signature->second.inputs().find(name);
    if (input == signature->second.inputs().end()) Fail(signature_name + ": there is no input " + name);
    tensorflow::Tensor tensor;
    if (!tensor.FromProto(value.tensor())) Fail(signature_name + ", " + name + ": not a tensor");
    feeds.emplace_back(input->second.name(), tensor);
  }
  std::vector<std::string> names, fetches;
  for (const auto& [name, output] : signature->second.outputs()) {
    names.push_back(name);
    fetches.push_back(output.name());
  }
  std::vector<tensorflow::Tensor> values;
  const auto start = std::chrono::steady_clock::now();
  Require(bundle.GetSession()->Run(feeds, fetches, {}, &values), signature_name);
  const Seconds spent = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < values.size(); ++i) {
    // Not AsProtoTensorContent: Python does not read its form of strings.
    values[i].AsProtoField((*answer->mutable_attr())[names[i]].mutable_tensor());
  }
  return spent;
}

// Answers a file of requests.
Seconds AnswerFile(const tensorflow::SavedModelBundle& bundle, const std::string& request_file,
                   const std::string& answer_file) {
  tensorflow::Env* env = tensorflow::Env::Default();
  tensorflow::GraphDef requests, answers;
  Require(tensorflow::ReadBinaryProto(env, request_file, &requests), request_file);
  Seconds spent(0);
  for (const auto& request : requests.node()) spent += Answer(bundle, request, answers.add_node());
  Require(tensorflow::WriteBinaryProto(env, answer_file, answers), answer_file);
  return spent;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);  // standard error is for the one line
  if (argc < 4) Fail("expected DIRECTORY REQUESTS ANSWERS [OP_LIBRARY ...]");
  tensorflow::Env* env = tensorflow::Env::Default();
  for (int i = 4; i < argc; ++i) {
    void* handle = nullptr;
    Require(env->LoadDynamicLibrary(argv[i], &handle), argv[i]);
  }
  tensorflow::SessionOptions options;
  (*options.config.mutable_device_count())["GPU"] = 0;  // a GPU rounds differently
  tensorflow::SavedModelBundle bundle;
  Require(tensorflow::LoadSavedModel(options, tensorflow::RunOptions(), argv[1], {"serve"}, &bundle), argv[1]);
  if (std::string(argv[2]) != "-") {
    AnswerFile(bundle, argv[2], argv[3]);
    return 0;
  }
  std::string requests, answers;
  while (std::getline(std::cin, requests) && std::getline(std::cin, answers)) {
    std::cout << AnswerFile(bundle, requests, answers).count() << std::endl;
  }
  return 0;
}
