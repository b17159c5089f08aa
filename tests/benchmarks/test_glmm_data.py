"""The designs of the tables of mixed models, on records that are made up."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.glmm.data import diabetes, diagnosis_group

COLUMNS = {
    "discharge_disposition_id": [1, 3],
    "admission_source_id": [7, 1, 4],
    "race": ["Caucasian", "AfricanAmerican", "Asian", None],
    "diag_1": ["250.1", "410", "V57", "786"],
    "A1Cresult": ["None", "Norm", ">7", ">8"],
    "change": ["Ch", "No"],
    "readmitted": ["<30", ">30", "NO"],
    "time_in_hospital": [1, 2, 3, 9],
}


def records(num_patients, rng):
    """Two records of each patient, interleaved."""
    size = 2 * num_patients
    frame = {name: rng.choice(np.array(levels, object), size) for name, levels in COLUMNS.items()}
    return pd.DataFrame(frame | {"patient_nbr": np.tile(np.arange(num_patients) + 7, 2)})


@pytest.mark.parametrize(
    ("code", "group"),
    [
        ("250.83", "diabetes"),
        ("428", "circulatory"),
        ("785", "circulatory"),
        ("786", "respiratory"),
        ("787", "digestive"),
        ("788", "genitourinary"),
        ("153", "neoplasms"),
        ("715", "musculoskeletal"),
        ("996", "injury"),
        ("249", "other"),
        ("251", "other"),
        ("V57", "other"),
        (float("nan"), "other"),
    ],
)
def test_primary_diagnoses_are_grouped_by_their_codes(code, group):
    assert diagnosis_group(code) == group


def test_patients_of_one_record_are_left_out_and_so_are_discharges_to_death_or_hospice(rng):
    frame = records(200, rng)
    assert diabetes(frame).num_groups == 200
    frame.loc[0, "discharge_disposition_id"] = 11
    frame.loc[1, "discharge_disposition_id"] = 13
    design = diabetes(frame)
    assert design.num_groups == 198
    assert (np.bincount(design.group) == 2).all()


def test_a_row_has_its_main_terms_and_their_products(rng):
    frame = records(300, rng)
    frame = frame.sort_values("patient_nbr", kind="stable", ignore_index=True)
    X = diabetes(frame).X
    stay = frame.time_in_hospital.to_numpy(float)
    stay = (stay - stay.mean()) / stay.std()
    elsewhere = (frame.discharge_disposition_id == 3).to_numpy(float)
    np.testing.assert_array_equal(X[:, 0], 1.0)
    np.testing.assert_array_equal(X[:, 1], frame.admission_source_id == 7)  # emergency
    np.testing.assert_array_equal(X[:, 2], frame.admission_source_id == 1)  # referral
    np.testing.assert_array_equal(X[:, 3], elsewhere)
    np.testing.assert_allclose(X[:, 4], stay)
    races, diagnoses, hba1c = X[:, 5:8], X[:, 8:11], X[:, 11:14]
    np.testing.assert_array_equal(hba1c.sum(1), frame.A1Cresult != "None")
    products = [
        *(elsewhere * stay, *(elsewhere[:, None] * races).T, *(stay[:, None] * diagnoses).T),
        *(a * b for a in hba1c.T for b in diagnoses.T),
    ]
    np.testing.assert_allclose(X[:, 14:], np.stack(products, 1))


def test_responses_are_readmissions_within_thirty_days_in_the_order_of_patients(rng):
    frame = records(200, rng)
    design = diabetes(frame)
    ordered = frame.sort_values("patient_nbr", kind="stable")
    np.testing.assert_array_equal(design.group, ordered.patient_nbr - 7)
    np.testing.assert_array_equal(design.y, ordered.readmitted == "<30")
