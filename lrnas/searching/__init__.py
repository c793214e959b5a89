"""The search itself: proposing networks, training them, stopping early, and retraining the best ones."""
