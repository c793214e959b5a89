"""One network trained, checkpointed, and tested."""
