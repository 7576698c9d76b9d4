"""Search stacks' clients of OpenAI's API, against bert-serve: OpenAI's Python client, LangChain's and LlamaIndex's.

They run in an environment of their own, which is the suite's folder (docs/testing.md). There this file is the program
that asks; here it is the adapter that serves.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import traceback

NAME = "search-stacks"
FOLDER = "stacks"
_KEY = "a-key"
_MODEL = "embedder"
_TEXTS = ["the cat sat", "a longer text of some words on the mat", "cat"]


def run(folder: str):
    """Serves a small embedder with a key, and has the clients ask it."""
    from oracle import Case
    from served import ask, serving
    from toy_saved import ALL_HEADS, save_graph

    from export import companion_files

    with tempfile.TemporaryDirectory() as scratch:
        head, base_path = ALL_HEADS["sentence_embedding"](), os.path.join(scratch, "models")
        version = save_graph(head, os.path.join(base_path, "1"))
        companion_files.write_extras(version, head)
        keys = os.path.join(scratch, "keys.txt")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(_KEY)
        model = f'name: "{_MODEL}" base_path: "{base_path}" model_platform: "tensorflow"'
        with serving(f"model_config_list {{ config {{ {model} }} }}", f"--api_key={keys}") as port:
            body = json.dumps({"instances": _TEXTS})
            _, answer = ask(port, "POST", f"/v1/models/{_MODEL}:predict", body, {"Authorization": f"Bearer {_KEY}"})
            vectors = json.loads(answer)["predictions"]
            command = [os.path.join(folder, "bin", "python"), __file__, f"http://127.0.0.1:{port}/v1"]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run(
                command, input=json.dumps(vectors), env=environment, capture_output=True, text=True, timeout=600
            )
    if done.returncode:
        raise RuntimeError(f"The clients ended with {done.returncode}: {done.stderr[-2000:]}")
    return [Case(*case) for case in json.loads(done.stdout)]


# === In the environment of the clients ===


class Clients:
    """The cases: each method that has no underscore is one. `vectors` are the right ones of `_TEXTS`."""

    def __init__(self, url: str, vectors: list[list[float]]):
        import openai

        self.openai = openai
        self.url, self.vectors = url, vectors
        self.client = openai.OpenAI(base_url=url, api_key=_KEY, max_retries=0)

    def _check(self, embeddings, expected=None) -> None:
        pairs = zip(embeddings, expected or self.vectors, strict=True)
        largest = max(abs(a - b) for row, right in pairs for a, b in zip(row, right, strict=True))
        assert largest < 1e-5, largest

    def openai_embeddings(self):
        """Asks for base64 by default."""
        answer = self.client.embeddings.create(model=_MODEL, input=_TEXTS)
        self._check([entry.embedding for entry in answer.data])
        assert answer.model == _MODEL and answer.usage.prompt_tokens == answer.usage.total_tokens > len(_TEXTS)

    def openai_floats(self):
        answer = self.client.embeddings.create(model=_MODEL, input=_TEXTS, encoding_format="float")
        self._check([entry.embedding for entry in answer.data])

    def openai_dimensions(self):
        answer = self.client.embeddings.create(model=_MODEL, input=_TEXTS[0], dimensions=2)
        first, second = self.vectors[0][:2]
        length = (first**2 + second**2) ** 0.5
        self._check([answer.data[0].embedding], [[first / length, second / length]])

    def openai_async(self):
        async def ask():
            async with self.openai.AsyncOpenAI(base_url=self.url, api_key=_KEY, max_retries=0) as client:
                return await client.embeddings.create(model=_MODEL, input=_TEXTS)

        self._check([entry.embedding for entry in asyncio.run(ask()).data])

    def openai_models(self):
        assert [model.id for model in self.client.models.list()] == [_MODEL]

    def openai_wrong_key(self):
        try:
            self.openai.OpenAI(base_url=self.url, api_key="other", max_retries=0).models.list()
        except self.openai.AuthenticationError as error:
            assert error.status_code == 401
        else:
            raise AssertionError("It was let in.")

    def openai_wrong_key_for_embeddings(self):
        client = self.openai.OpenAI(base_url=self.url, api_key="other", max_retries=0)
        try:
            client.embeddings.create(model=_MODEL, input="a")
        except self.openai.AuthenticationError as error:
            assert error.code == "invalid_api_key"
        else:
            raise AssertionError("It was let in.")

    def openai_unknown_model(self):
        try:
            self.client.embeddings.create(model="other", input="a")
        except self.openai.NotFoundError as error:
            assert error.code == "model_not_found"
        else:
            raise AssertionError("It was answered.")

    def openai_wrong_input(self):
        try:
            self.client.embeddings.create(model=_MODEL, input="a", dimensions=10**6)
        except self.openai.BadRequestError as error:
            assert error.type == "invalid_request_error" and "'dimensions'" in error.message
        else:
            raise AssertionError("It was answered.")

    def _langchain(self, **settings):
        from langchain_openai import OpenAIEmbeddings

        settings = {"check_embedding_ctx_length": False, **settings}
        return OpenAIEmbeddings(model=_MODEL, base_url=self.url, api_key=_KEY, max_retries=0, **settings)

    def langchain_documents(self):
        self._check(self._langchain().embed_documents(_TEXTS))

    def langchain_query(self):
        self._check([self._langchain().embed_query(_TEXTS[0])], self.vectors[:1])

    def langchain_async(self):
        self._check(asyncio.run(self._langchain().aembed_documents(_TEXTS)))

    def langchain_dimensions(self):
        assert [len(row) for row in self._langchain(dimensions=3).embed_documents(_TEXTS)] == [3] * len(_TEXTS)

    def _llama_index(self, **settings):
        from llama_index.embeddings.openai import OpenAIEmbedding

        return OpenAIEmbedding(model_name=_MODEL, api_base=self.url, api_key=_KEY, max_retries=0, **settings)

    def llama_index_texts(self):
        self._check(self._llama_index().get_text_embedding_batch(_TEXTS))

    def llama_index_query(self):
        self._check([self._llama_index().get_query_embedding(_TEXTS[0])], self.vectors[:1])

    def llama_index_async(self):
        self._check(asyncio.run(self._llama_index().aget_text_embedding_batch(_TEXTS)))

    def llama_index_dimensions(self):
        assert len(self._llama_index(dimensions=4).get_text_embedding(_TEXTS[0])) == 4


def _main() -> None:
    clients, cases = Clients(sys.argv[1], json.load(sys.stdin)), []
    for name in [name for name in vars(Clients) if not name.startswith("_")]:
        try:
            getattr(clients, name)()
            cases.append((name, "passed"))
        except Exception:
            cases.append((name, "failed", traceback.format_exc()))
    json.dump(cases, sys.stdout)


if __name__ == "__main__":
    _main()
