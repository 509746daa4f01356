# %% [markdown]
# # Private federated learning with scikit-learn's interface
#
# Four clinics each have handwritten digits, and no clinic has all of them. How good is a model that they train together
# without sharing a row, and what does differential privacy cost? Run this file cell by cell in an editor that knows
# `# %%`, or as a whole: `python examples/scikit-learn/walkthrough.py`, about 10 seconds.

# %%
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import twinflower

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)

# %% [markdown]
# ## Who has which rows
#
# `sites` names the clinic of every row. Three quarters of a clinic's rows are of digits that it sees often.

# %%
draw = np.random.default_rng(0)
clinics = np.array(["north", "east", "south", "west"])
sites = np.where(draw.random(len(y)) < 0.75, clinics[y % 4], draw.choice(clinics, len(y)))
for clinic in clinics:
    print(
        f"{clinic:>6}: {np.sum(sites == clinic)} rows, digits {np.bincount(y[sites == clinic], minlength=10)}"
    )

# %% [markdown]
# ## Alone, together, and all rows in one place
#
# Every round the clinics send sums over their rows, and no row (Newton's method). After a few rounds the model is that
# of all rows in one place, with columns scaled to [-1, 1]. Some columns separate digits, so there is a ridge penalty.

# %%
ridge = {"objective.l2": 1 / len(y)}  # scikit-learn's default, C = 1
together = twinflower.FederatedClassifier(ranges=(0, 16), settings=ridge).fit(X, y, sites=sites)
print(f"converged after {together.history_[-1]['round']} rounds")
one_place = LogisticRegression(max_iter=2000).fit(X / 8 - 1, y)
scores = {
    "federated": together.score(X_test, y_test),
    "all rows in one place": one_place.score(X_test / 8 - 1, y_test),
}
for clinic in clinics:
    alone = LogisticRegression(max_iter=2000).fit(X[sites == clinic] / 8 - 1, y[sites == clinic])
    scores[f"{clinic} alone"] = alone.score(X_test / 8 - 1, y_test)
for name, score in scores.items():
    print(f"{name:>22}: {score:.3f}")

# %% [markdown]
# ## What privacy costs
#
# With `epsilon` the guarantee is for every row: it covers everything that its clinic sends in all rounds. `ranges` must
# then be public bounds of the columns, here the 17 shades of grey.

# %%
private = twinflower.FederatedClassifier(epsilon=8, ranges=(0, 16), random_state=0)
for epsilon in (1, 4, 8):
    fitted = clone(private).set_params(epsilon=epsilon).fit(X, y, sites=sites)
    scores[f"epsilon {epsilon}"] = fitted.score(X_test, y_test)
    print(f"epsilon {epsilon}: accuracy {fitted.score(X_test, y_test):.3f}")
print(fitted.privacy_["guarantee"])

# %% [markdown]
# ## Pipelines and grid searches
#
# The estimators work wherever scikit-learn's do. A search looks at the rows again with every candidate, so on real
# private data choose settings on public data, or charge every fit.

# %%
pipeline = make_pipeline(
    FunctionTransformer(np.sqrt), twinflower.FederatedClassifier(ranges=(0, 4), settings=ridge)
)
search = GridSearchCV(pipeline, {"federatedclassifier__settings__objective__l2": [1e-3, 1e-2]}, cv=3)
search.fit(X, y, federatedclassifier__sites=sites)
scores["search"] = search.score(X_test, y_test)
print(f"{search.best_params_}: {scores['search']:.3f}")

# %% [markdown]
# ## A scikit-learn pipeline
#
# `to_sklearn` returns scikit-learn's own logistic regression behind the preprocessing of the run.

# %%
plain = together.to_sklearn()
print(plain[-1], plain[-1].coef_.shape)
assert np.array_equal(plain.predict(X_test), together.predict(X_test))
