#!/usr/bin/env bash
# The Python package: builds the wheel, installs it into target/python, runs its tests.
#     tools/python.sh                     with NumPy and JAX from PyPI; PyTorch's tests skip themselves
#     tools/python.sh -k traces           arguments of pytest
#     tools/python.sh --wheel             only the wheel, in target/wheels
# Needs python3 with venv, and PyPI. `PYTHON` names another interpreter, 3.10 or newer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=$PWD/target/python
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.9,<2"
rm -f target/wheels/abreast-*.whl
"$environment/bin/maturin" build --quiet --release --locked --manifest-path crates/abreast-python/Cargo.toml --out target/wheels
wheel=$(echo target/wheels/abreast-*.whl)
echo "$wheel: $(($(stat --format %s "$wheel") >> 10)) KiB"
[ "${1-}" != --wheel ] || exit 0
"$environment/bin/pip" install --quiet --disable-pip-version-check pytest numpy ml_dtypes "jax[cpu]"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
# From elsewhere, so that what was installed is tested.
cd target
exec "$environment/bin/python" -m pytest -q -p no:cacheprovider -rs "$environment/../../crates/abreast-python/tests" "$@"
