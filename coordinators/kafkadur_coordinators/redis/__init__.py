"""Redis or Valkey: which server it is, the scripts in it, and whether processes are heard."""
