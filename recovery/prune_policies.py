"""What pruning may delete."""

# The reason why it is not needed, by policy. An undecided cycle is never touched.
POLICIES = {
    "rejected": "of a cycle that was rejected or rolled back",
    "midtrained": "the mid-trained model of an accepted cycle",
    "replaced": "replaced by the accepted one",
    "states": "training states of a stage that is done",
    "interrupted": "left by a prune that was stopped",
}
