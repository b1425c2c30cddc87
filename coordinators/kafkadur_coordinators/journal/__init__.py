"""The journal: the topic that has what Redis may lose, its records, and bringing it back."""
