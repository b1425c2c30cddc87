"""The project's own tooling: set-up, lock files, checks. Standard library only, not part of the wheel."""
