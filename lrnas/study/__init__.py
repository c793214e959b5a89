"""The record of a search: trials, costs, fronts, and where they are stored. Needs neither torch nor Ray."""
