"""Invent 800 patients of three regions, and write region-1.csv to region-3.csv into the current folder.

    python regions.py

The patients do not exist. Their times follow Cox's model with baseline hazards that differ between the regions and with
the hazard ratios in RATIOS; a patient who has not died is censored when the study ends.
"""

import csv

import numpy as np

RATIOS = {"age": 1.4, "stage II": 1.8, "stage III": 4.0, "treated": 0.7}  # age: for 10 years
REGIONS = {350: 0.015, 250: 0.025, 200: 0.035}  # patients, and deaths per year at age 60, stage I, untreated


def patients(draw: np.random.Generator, count: int, level: float) -> list[dict[str, object]]:
    """Patients of one region: age, stage, treated or not, days until death or censoring, and which of the two."""
    age = draw.normal(60, 12, count).clip(25, 95).round()
    stage = draw.choice(["I", "II", "III"], count, p=[0.4, 0.4, 0.2])
    treated = draw.random(count) < 0.5
    hazard = level * RATIOS["age"] ** ((age - 60) / 10) * np.where(treated, RATIOS["treated"], 1.0)
    hazard *= np.select([stage == "II", stage == "III"], [RATIOS["stage II"], RATIOS["stage III"]], 1.0)
    death, end = draw.exponential(1 / hazard), draw.uniform(1, 10, count)  # years
    days = np.ceil(365 * np.minimum(death, end)).astype(int)
    columns = {"age": age.astype(int), "stage": stage, "treated": treated.astype(int)}
    columns |= {"days": days, "died": (death <= end).astype(int)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


if __name__ == "__main__":
    for place, (count, level) in enumerate(REGIONS.items(), start=1):
        rows = patients(np.random.default_rng(place), count, level)
        with open(f"region-{place}.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
