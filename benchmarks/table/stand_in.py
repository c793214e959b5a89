"""A stand-in for training: accuracies of any network of a space, predicted from the trained networks of the table.

Samplers can be compared on it in seconds instead of GPU hours. The accuracy after the short recipe is a quadratic in
log MACs, plus a linear effect of the weights per MAC, plus extremely randomised trees for what is left. Weights per MAC
count only as far as networks with so many or so few were trained, and trees do not extrapolate: so no sampler can find
a network that is far better than all that were trained. The trees have nothing in common with the model of the sampler
`front`, a Gaussian process. The accuracy after the full recipe is a regression on the short one and on log MACs.
Networks that are held out are not used, so `errors` tells how far it is from real trainings.

    python -m benchmarks.table.stand_in                       # print these errors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.table.analyse import FULL, SHORT, by_network, label, taus
from benchmarks.table.networks import DENSE, Network, get_space, read_networks
from benchmarks.table.records import STAND_IN_FILES, Record, read_records
from lrnas.sampling.axes import Axes
from lrnas.searching.proposals import distributions_of

Values = npt.NDArray[np.float64]


class StandIn:
    """Predicted accuracies of the networks of a space.

    Args:
        space: The space.
        records: Trainings of the table.
    """

    def __init__(self, space: str, records: Sequence[Record]) -> None:
        self.space = get_space(space)
        self._axes = Axes(distributions_of(self.space))
        own = [record for record in records if record["network"]["space"] == space]
        self._short, self._full = (by_network(r for r in own if label(r) == name) for name in (SHORT, FULL))
        self._values = {network["id"]: network["values"] for network in read_networks()[space]}
        networks = self._networks(held_out=False)
        features, targets = self._features(networks), self._measured(networks, self._short)
        self._middle = features[:, 0].mean()
        ratio = features[:, 1] - features[:, 0]
        self._slope = np.polyfit(features[:, 0] - self._middle, ratio, 1)
        self._range = np.quantile(ratio - np.polyval(self._slope, features[:, 0] - self._middle), [0.05, 0.95])
        self._line = _solve(self._terms(features), targets)
        self._trees = ExtraTreesRegressor(200, min_samples_leaf=2, max_features=0.5, random_state=0)
        self._trees.fit(features, targets - self._terms(features) @ self._line)
        both = [network for network in networks if network["id"] in self._full]
        terms = self._full_terms(self._measured(both, self._short), self._features(both))
        self._full_line = _solve(terms, self._measured(both, self._full))
        self.num_networks = len(networks), len(both)
        """Networks that it was made from: with short trainings, and with both."""
        self.lowest = float(self._measured(both, self._full).min())
        """The lowest accuracy after full training among them."""

    def _networks(self, held_out: bool) -> list[Network]:
        networks = [self._short[i][0]["network"] for i in sorted(self._short)]
        return [network for network in networks if network["held_out"] == held_out]

    def _measured(self, networks: Sequence[Network], found: dict[str, list[Record]]) -> Values:
        return np.array([np.mean([r["curves"]["val"][-1] for r in found[network["id"]]]) for network in networks])

    def _features(self, networks: Sequence[Network]) -> Values:
        """(networks, features): log MACs and log parameters first."""
        values = [network["values"] or self._values[network["id"]] for network in networks]
        costs = np.log([[network["macs"], network["params"]] for network in networks])
        return np.column_stack([costs, self._axes.encode([self._axes.point(own) for own in values])])

    def _terms(self, features: Values) -> Values:
        """What the accuracy after short training is a linear function of, apart from the trees."""
        macs = features[:, 0] - self._middle
        ratio = (features[:, 1] - features[:, 0] - np.polyval(self._slope, macs)).clip(*self._range)
        return np.column_stack([np.vander(macs, 3), ratio])

    def _full_terms(self, short: Values, features: Values) -> Values:
        """What the accuracy after full training is a linear function of."""
        return np.column_stack([np.vander(features[:, 0] - self._middle, 3), short])

    def _predict(self, features: Values) -> tuple[Values, Values]:
        short = self._terms(features) @ self._line + self._trees.predict(features)
        return short, self._full_terms(short, features) @ self._full_line

    def predict(self, values: dict[str, Any], macs: float, params: float) -> tuple[float, float]:
        """The accuracies of a network after short and after full training, without the noise of a training.

        Args:
            values: The values of the space's parameters.
            macs: The network's MACs, as deployed.
            params: The number of its weights.
        """
        network = {"id": "", "values": values, "macs": macs, "params": params}
        short, full = self._predict(self._features([network]))
        return float(short[0]), float(full[0])

    def errors(self) -> dict[str, dict[str, float]]:
        """Errors of predictions for held-out networks, in points of accuracy, and taus."""
        networks = self._networks(held_out=True)
        found = {}
        for name, which in (("short", self._short), ("full", self._full)):
            some = [network for network in networks if network["id"] in which]
            features, measured = self._features(some), self._measured(some, which)
            predicted = self._predict(features)[name == "full"]
            tau, given = taus(predicted, measured, features[:, 0])
            found[name] = {
                "networks": len(some),
                "root_mean_square": round(100 * float(np.sqrt(((predicted - measured) ** 2).mean())), 3),
                "deviation_of_measured": round(100 * float(measured.std()), 3),
                "tau": round(tau, 3),
                "tau_given_macs": round(given, 3),
            }
        return found


def _solve(terms: Values, targets: Values) -> Values:
    return np.asarray(np.linalg.lstsq(terms, targets, rcond=None)[0])


def main() -> None:
    records = read_records(STAND_IN_FILES)
    for space in DENSE:
        found = StandIn(space, records)
        print(space, "made from {} networks, {} of them trained in full".format(*found.num_networks), found.errors())


if __name__ == "__main__":
    main()
