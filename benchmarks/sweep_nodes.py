"""Measure a sweep on a ray cluster of two nodes, one of which dies halfway while another one joins.

``python benchmarks/sweep_nodes.py --seeds 16`` trains 64 small runs with the local executor and with the cluster, and
compares their rows. Needs ``lengthwise[ray]``.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.executors import import_ray
from lengthwise.experiments.run_folder import append_rows
from lengthwise.experiments.runner import Comparison

RESULTS = Path(__file__).parent / "results" / "sweep_nodes.jsonl"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
TIMES = ("wall_s", "train_s", "time")


def experiments(steps: int) -> dict[str, lw.Experiment]:
    """Return four small experiments by label."""
    return {
        encoding: replace(
            lw.experiment("parity", "predicted", encoding),
            decoder=lw.DecoderSettings(num_layers=1, d_model=32, num_heads=2),
            training=lw.TrainingSettings(steps=steps, batch_size=16, checkpoint_every=20),
            train_lengths=(1, 10),
            evaluation=lw.EvaluationSettings(lengths=(10, 20), num_examples=(64,)),
        )
        for encoding in ("rotary", "alibi", "nope", "fire")
    }


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without times."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def sweep_on_cluster(settings: dict[str, Any], num_runs: int) -> tuple[Comparison, float]:
    """Run a sweep on two nodes, replace one of them halfway, and return the result and the seconds."""
    ray = import_ray()
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    node = cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)

    def replace_node(num_done: int, num_total: int, line: str) -> None:
        if num_done == num_runs // 2:
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(**NODE)

    try:
        start_time = time.perf_counter()
        result = lw.sweep(**settings, executor="ray", report=replace_node)
        return result, time.perf_counter() - start_time
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    """Run both sweeps, print one row and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16, help="number of seeds; there are four experiments")
    parser.add_argument("--steps", type=int, default=100, help="training steps of each run")
    arguments = parser.parse_args()
    rows = experiments(arguments.steps)
    settings: dict[str, Any] = {"experiments": rows, "seeds": arguments.seeds, "device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        start_time = time.perf_counter()
        local = lw.sweep(**settings, out=Path(folder) / "local", workers=2)
        local_s = time.perf_counter() - start_time
        num_runs = len(rows) * arguments.seeds
        remote, ray_s = sweep_on_cluster({**settings, "out": Path(folder) / "ray"}, num_runs)
    row = {
        "runs": num_runs,
        "steps": arguments.steps,
        "local_s": round(local_s, 1),
        "ray_s": round(ray_s, 1),
        "failed": len(remote.failed),
        "same_rows": untimed(remote.rows) == untimed(local.rows),
        **collect_provenance(),
    }
    print(row)
    append_rows(RESULTS, [row])


if __name__ == "__main__":
    main()
