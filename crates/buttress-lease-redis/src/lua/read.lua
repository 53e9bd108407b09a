-- What is kept of a lease, and what time it is. KEYS: the lease, and what outlives it.
local lease, kept = KEYS[1], KEYS[2]
-- The token has no end. Besides, a replica refuses to write, and so to answer with what is old; and a script that
-- has begun to write is refused nothing for want of room, and so done as a whole.
redis.call('PERSIST', kept)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local fence, revision, memo = unpack(redis.call('HMGET', kept, 'fence', 'revision', 'memo'))
local holder, ttl, acquired, renewed, expires, payload = unpack(redis.call(
    'HMGET', lease, 'holder', 'ttl_ms', 'acquired_us', 'renewed_us', 'expires_us', 'payload'))
if not fence then
    holder = false
end

-- Microseconds have 16 digits until 2255, and are exact up to 2^53.
local function is_whole(text)
    return text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text) < 2 ^ 53
end
if fence and not (is_whole(fence) and is_whole(revision))
    or holder and not (is_whole(ttl) and is_whole(acquired) and is_whole(renewed) and is_whole(expires))
then
    return redis.error_reply('NOLEASE what stands there is no lease of ours')
end

local function text(number)
    return string.format('%.0f', number)
end
local function answer(is_done)
    return {is_done and '1' or '0', text(now), fence, revision, memo,
        holder, ttl, acquired, renewed, expires, payload}
end
