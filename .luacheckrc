-- The scripts of coordinators/kafkadur_coordinators/redis/lua, checked as the server gets them: `tools/check_lua.py`
-- assembles each with its includes. The server runs Lua 5.1 with the globals below.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV" }
max_line_length = 130 -- contracts and calls with many fields read better unbroken
