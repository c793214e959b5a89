"""Mutated points lie in the space, near their parents."""

import numpy as np
from small_studies import SPACE, make_proposals

from lrnas.searching.mutate import is_width, mutate


def test_mutated_points_are_in_the_space_and_near_the_parent() -> None:
    varied, distributions = make_proposals().varied, make_proposals().distributions
    parent, random = SPACE.params_of(SPACE.points["nin"]), np.random.default_rng(0)
    changed = []
    for _ in range(200):
        params = mutate(varied, [parent], random)
        assert params.keys() == parent.keys() and SPACE.architecture(params)
        assert all(distributions[name]._contains(distributions[name].to_internal_repr(params[name])) for name in params)
        widths = {parameter.name for parameter in varied if is_width(parameter)}
        changed.append(sum(params[name] != parent[name] for name in params if name not in widths))
    assert 0 < np.mean(changed) < 4 and max(changed) < len(varied) / 2


def test_two_parents_are_mixed() -> None:
    varied, random = make_proposals().varied, np.random.default_rng(0)
    parents = [{one.name: one.values[at] for one in SPACE.parameters} for at in (0, -1)]
    from_both = 0
    for _ in range(100):
        params = mutate(varied, parents, random)
        near = [sum(params[one.name] == parent[one.name] for one in varied) for parent in parents]
        from_both += min(near) > len(varied) / 4
    assert 5 < from_both < 40
