# torch_npu and TorchAir without an NPU:  docker build -t softnpu . && docker run --rm softnpu softnpu info
# A project's tests:  docker run --rm -v "$PWD:/work" softnpu sh -c "pip install -r requirements.txt && pytest"
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
ARG TORCH=2.13.0
ARG INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "torch==${TORCH}" numpy "setuptools>=77" wheel ninja --index-url "${INDEX}" --extra-index-url https://pypi.org/simple
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY csrc csrc
COPY src src
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /wheel .

FROM python:${PYTHON}-slim
ARG TORCH=2.13.0
ARG INDEX=https://download.pytorch.org/whl/cpu
# torch.compile and TorchAir compile at run time.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "torch==${TORCH}" numpy pytest --index-url "${INDEX}" --extra-index-url https://pypi.org/simple
COPY --from=build /wheel /wheel
RUN pip install --no-cache-dir /wheel/softnpu-*.whl && rm -r /wheel
ENV SOFTNPU_SOC=Ascend910B3
WORKDIR /work
RUN softnpu doctor
CMD ["softnpu", "info"]
