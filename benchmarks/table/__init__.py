"""A table of trained networks: which short training predicts a full one, and what a sampler can be replayed on.

    python -m benchmarks.table.networks                       # draw the networks (once: the list is kept)
    python -m benchmarks.table.train --what truth short --range 0:64 --seconds 530 --out results/table/new.jsonl
    python -m benchmarks.table.analyse --epochs               # print tau of every short recipe
    python -m benchmarks.table.records results/table/new.jsonl --out results/table/NAME.json.xz       # pack to keep

All run from the root of the repository, with torch, timm and Optuna but without Ray.

| module | what it does |
|---|---|
| `networks` | draws networks of a space in a fixed order, and new ones near the front |
| `jobs` | the recipes, and the list of trainings in order of priority |
| `train` | trains them on one GPU with several processes, until all are done or the time is over |
| `records` | reads result files, and packs them into one small file |
| `analyse` | Kendall's tau between short and full trainings, with bootstrap errors |
| `calibrate` | how far the model of a search can be trusted when it predicts full trainings |
| `effects` | what each parameter of a space is worth at given costs |
| `stand_in` | predicts accuracies of any network from the table, for `benchmarks/samplers.py` |
| `figures` | the picture in docs/proxy.md |

`--what` takes one or more of these, in order of priority:

- `sweep`: candidates for the full recipe, then many short recipes, on a few networks each;
- `truth`: networks `--range` of each space with the full recipe; validation and (once, at the end) test images;
- `short`: the same networks with every short recipe;
- `table`: many networks with the first short recipe; 30 % of them near the front of those trained before.

A result is appended to `--out` as soon as it is known. At the start `results/table/*.json.xz`, `results/table/*.jsonl`
and `--out` are read, and what is in them is not trained again: the same command continues where the last one ended. Two
results are the same if network, recipe, seed and number of images are the same; the commit does not matter. So after a
change of the training loop, begin with another folder.

The index of a network says whether it is held out (`networks.is_held_out`): none of the first 32, 16 of the first 64,
a quarter of the rest. Choose recipes by `analyse --part dev`, its default; `--part held` is for final figures only.
"""
