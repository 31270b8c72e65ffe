package token

import (
	"crypto/sha256"
	"sync"
)

// cachedTokens is how many tokens one generation of the cache holds.
const cachedTokens = 8192

// tokenDigest stands for a token in memory, so that the cache keeps no token
// that could be stolen from it.
type tokenDigest [sha256.Size]byte

func digestOf(token string) tokenDigest { return sha256.Sum256([]byte(token)) }

// tokenCache remembers what the tokens say whose signature was found to hold.
// It is bounded by two generations: a full one becomes the old one, and what is
// asked for in the old one moves to the young. Only genuine tokens get in, so
// that unauthenticated clients cannot evict anything. It is safe for concurrent use.
type tokenCache struct {
	limit int

	mu         sync.RWMutex
	young, old map[tokenDigest]Token // guarded by mu
}

func newTokenCache(limit int) *tokenCache {
	return &tokenCache{limit: limit, young: map[tokenDigest]Token{}}
}

func (c *tokenCache) get(d tokenDigest) (Token, bool) {
	c.mu.RLock()
	t, young := c.young[d]
	if young {
		c.mu.RUnlock()
		return t, true
	}
	t, old := c.old[d]
	c.mu.RUnlock()
	if old {
		c.add(d, t)
	}
	return t, old
}

func (c *tokenCache) add(d tokenDigest, t Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= c.limit {
		c.young, c.old = make(map[tokenDigest]Token, c.limit), c.young
	}
	c.young[d] = t
}

func (c *tokenCache) drop(d tokenDigest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.young, d)
	delete(c.old, d)
}

// len returns how many tokens are remembered, some perhaps twice.
func (c *tokenCache) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.young) + len(c.old)
}
