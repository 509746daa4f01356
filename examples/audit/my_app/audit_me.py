"""The audit of client_app.py: `twinflower audit audit_me.py`. See docs/audit.md."""

import client_app
import numpy as np

from twinflower import audit


def app_with(rows, seed):
    """The app of a client that holds these rows."""
    client_app.load_data = lambda partition: (rows["x"], rows["y"])  # however your app gets its data
    return client_app.app


features, labels = client_app.load_data(0)

cases = audit.client_case(
    "my app",
    app_with,
    model=[np.zeros(client_app.FEATURES + 1)],  # the arrays of your model, as the server sends them
    rows={"x": features, "y": labels},  # columns with one entry per record
    label="y",
    claim=audit.Claim(epsilon=8.0, delta=1e-5),  # for all rounds together
    rounds=client_app.ROUNDS,
    declared=audit.of_local_dp_mod(client_app.local_dp, client_app.ROUNDS),
)
