"""nccl_to_csv.py of AWS on a text: CHECKOUT TEXT. Prints JSON."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "micro-benchmarks" / "nccl-tests"))

import nccl_to_csv  # noqa: E402

rows, average = nccl_to_csv.parse_nccl_output(sys.argv[2])
summary = {line["Metric"]: line["Value"] for line in nccl_to_csv.create_summary_data(rows or [], average) or []}
reported = summary.get("NCCL Reported Avg Bus BW (GB/s)")
print(json.dumps({"rows": len(rows or []), "errors": summary.get("Total Errors"), "average": reported}))
