package condition

import (
	"container/list"
	"sync"
)

// cache holds compiled expressions by their text, those that were used last, in
// a bounded number of bytes. It is safe for concurrent use.
type cache struct {
	limit int

	mu     sync.Mutex // guards all below
	bytes  int
	byText map[string]*list.Element // of *Condition
	// used has the conditions, the one used last in front.
	used list.List
}

func newCache(limit int) *cache {
	return &cache{limit: limit, byText: map[string]*list.Element{}}
}

func (c *cache) get(text string) (*Condition, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byText[text]
	if !ok {
		return nil, false
	}
	c.used.MoveToFront(e)
	return e.Value.(*Condition), true
}

// add keeps a condition, and gives up those that were used longest ago for it.
func (c *cache) add(compiled *Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byText[compiled.text]; ok || compiled.bytes > c.limit {
		return
	}
	c.bytes += compiled.bytes
	c.byText[compiled.text] = c.used.PushFront(compiled)
	for c.bytes > c.limit {
		oldest := c.used.Remove(c.used.Back()).(*Condition)
		delete(c.byText, oldest.text)
		c.bytes -= oldest.bytes
	}
}
