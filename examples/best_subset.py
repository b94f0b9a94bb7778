"""Select the ten best predictors of diabetes from 64 features: ten measurements, their squares and products.

python examples/best_subset.py
"""

import argparse

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, lars_path
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from arms.sklearn import SubsetSelector

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--size", type=int, default=10)
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()

measured = load_diabetes()
products = make_pipeline(
    StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler()
)
X = products.fit_transform(measured.data)
names = products.get_feature_names_out(measured.feature_names)
keep = names != "sex^2"  # the square of a binary column adds no information
X, names = X[:, keep], names[keep]
train_X, test_X, train_y, test_y = train_test_split(
    X, measured.target, test_size=0.3, random_state=0
)

selector = SubsetSelector(options.size, max_iter=options.steps, random_state=0).fit(
    train_X, train_y
)
everything = LinearRegression().fit(train_X, train_y)

_, _, path = lars_path(train_X, train_y - train_y.mean(), method="lasso", max_iter=4 * options.size)
on_path = next(column for column in path.T if (column != 0).sum() >= options.size)
chosen = np.argsort(-np.abs(on_path))[: options.size]
lasso = LinearRegression().fit(train_X[:, chosen], train_y)

print(f"{'':24}{'features':>9}{'train R²':>10}{'test R²':>9}")
for title, model, columns in (
    ("all features", everything, slice(None)),
    ("lasso's, refitted", lasso, chosen),
    ("SubsetSelector", selector, slice(None)),
):
    count = options.size if model is not everything else X.shape[1]
    train, test = model.score(train_X[:, columns], train_y), model.score(test_X[:, columns], test_y)
    print(f"{title:24}{count:9}{train:10.3f}{test:9.3f}")

print("\nselected features, with coefficients of standardized columns and learned probabilities:")
for j in selector.get_support(indices=True):
    print(f"  {names[j]:8} {selector.coef_[j]:+8.2f}  {selector.probabilities_[j]:.2f}")
