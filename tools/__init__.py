"""The project's own tooling: set-up and checks. Standard library only, not part of the wheel."""
