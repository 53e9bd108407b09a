-- ARGV: who, for how long, what it says of itself; and the state that it has seen, fence and revision, if it is
-- not the server's clock that counts, or nothing; and the greatest token that it has seen, or 0.
local is_over = not holder
if holder and ARGV[4] == '' then
    is_over = tonumber(expires) <= now
elseif holder then
    is_over = fence == ARGV[4] and revision == ARGV[5]
end
if not is_over then
    return answer(false)
end
-- The time, so that it grows although everything before it was forgotten; and what candidates remember, for the
-- time may be set back.
local next = math.max((tonumber(fence) or 0) + 1, tonumber(ARGV[6]) + 1, now)
if next >= 2 ^ 53 then
    return redis.error_reply('NOLEASE there is no greater token')
end
fence, revision = text(next), text((tonumber(revision) or 0) + 1)
holder, ttl, payload = ARGV[1], ARGV[2], ARGV[3]
acquired, renewed, expires = text(now), text(now), text(now + ttl * 1000)
-- The token first: if no more is done, nobody has it.
redis.call('HSET', kept, 'fence', fence, 'revision', revision)
redis.call('DEL', lease)
redis.call('HSET', lease, 'holder', holder, 'ttl_ms', ttl, 'acquired_us', acquired, 'renewed_us', renewed,
    'expires_us', expires, 'payload', payload)
if ARGV[4] == '' then
    redis.call('PEXPIREAT', lease, text(math.ceil(expires / 1000)))
end
return answer(true)
