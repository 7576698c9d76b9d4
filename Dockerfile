# Two images: what serves an export, and what trains and exports.
#
#   docker build --target serve --tag bert-serve .
#   docker run -p 8500:8500 -p 8501:8501 -v "$PWD/runs/served/mood:/models/model:ro" bert-serve
#   docker build --target train --tag bert-train .
#   docker run -v "$PWD:/work" bert-train bert-classify --train_file=mood.csv --preset=preset --output_dir=runs/mood
#
# The sources are mounted while pip builds them, so that each image holds one layer of packages.
FROM python:3.11-slim AS base
ENV TF_ENABLE_ONEDNN_OPTS=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN useradd --uid 10001 --create-home bert

FROM base AS sources
WORKDIR /sources
COPY setup.py pyproject.toml commands.bzl README.md LICENSE requirements_lock.txt ./
COPY keras_bert keras_bert
COPY tasks tasks
COPY export export

FROM base AS train
RUN --mount=type=bind,from=sources,source=/sources,target=/sources,rw \
    pip install --constraint /sources/requirements_lock.txt /sources
USER 10001
WORKDIR /work
CMD ["bert-classify", "--help"]

FROM base AS serve
RUN --mount=type=bind,from=sources,source=/sources,target=/sources,rw \
    pip install --constraint /sources/requirements_lock.txt "/sources[serve]"
USER 10001
EXPOSE 8500 8501
# The server listens once its models are loaded, and its page is there whatever they are called.
HEALTHCHECK --start-period=120s --interval=20s --timeout=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/', timeout=4)"]
ENTRYPOINT ["bert-serve", "--host=0.0.0.0"]
CMD ["--model_name=model", "--model_base_path=/models/model"]
