"""Hold every fifth patient of each hospital out: the others to training/, and these together to test.csv.

    python hold_out.py

A deployment evaluates on a table that no site trains on.
"""

from pathlib import Path


def main() -> None:
    """Write the tables into the current folder, and print how many patients each hospital trains on."""
    Path("training").mkdir(exist_ok=True)
    held: list[str] = []
    for file in sorted(Path("sites").glob("*.csv")):
        header, *rows = file.read_text(encoding="utf-8").splitlines()
        training = [row for place, row in enumerate(rows) if place % 5]
        held = (held or [header]) + rows[::5]
        (Path("training") / file.name).write_text("\n".join([header, *training]) + "\n", encoding="utf-8")
        print(f"training/{file.name}: {len(training)} patients")
    Path("test.csv").write_text("\n".join(held) + "\n", encoding="utf-8")
    print(f"test.csv: {len(held) - 1} patients")


if __name__ == "__main__":
    main()
