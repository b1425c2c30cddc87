"""The threads and clients of a connection: exchanges, checkpoints, transactions, client ids."""
