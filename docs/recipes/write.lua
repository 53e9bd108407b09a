-- KEYS: the value, its fence. ARGV: the token, the new value. 1 if it was written, 0 if a newer leader has.
-- Compared by their digits: a number of Lua's is exact only up to 2^53.
local function less(a, b)
  return #a < #b or (#a == #b and a < b)
end
local seen = redis.call('GET', KEYS[2])
if seen and less(ARGV[1], seen) then
  return 0
end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1
