# make check: formatter, linter, imports, types and the quick tests, in about a minute
.PHONY: check test bench peers
check:
	ruff format --check . && ruff check . && python .ci/contracts.py && mypy && pytest --ignore tests/test_flower.py

test:
	pytest

bench:
	OMP_NUM_THREADS=1 python benchmarks/yardstick.py
	OMP_NUM_THREADS=1 python benchmarks/rounds.py --flower
	OMP_NUM_THREADS=1 python benchmarks/small_rounds.py
	OMP_NUM_THREADS=1 python benchmarks/privacy.py
	OMP_NUM_THREADS=1 python benchmarks/state.py
	OMP_NUM_THREADS=1 python benchmarks/ssca.py
	OMP_NUM_THREADS=1 python benchmarks/tables.py

# FedAvg of other libraries, installed in an environment of their own (over 1 GB), against ours
PEERS = build/peers
peers:
	test -x $(PEERS)/bin/python || python benchmarks/peers.py $(PEERS) --install
	OMP_NUM_THREADS=1 python benchmarks/peers.py $(PEERS)
