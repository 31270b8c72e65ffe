package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meridian/internal/resource"
)

// Proposer commits batches, as a log around a store does.
type Proposer interface {
	Propose(ctx context.Context, txn Txn) (Result, error)
}

// CreateMissing proposes a batch of resources that nobody has written yet. When
// one of them is there already nothing is written, and that is fine: somebody
// else made them.
func CreateMissing(ctx context.Context, p Proposer, at time.Time, batch ...*resource.Resource) error {
	txn := Txn{Time: at}
	for _, r := range batch {
		txn.Ops = append(txn.Ops, Put(r))
		txn.Preconditions = append(txn.Preconditions, Precondition{Key: r.Key()})
	}
	_, err := p.Propose(ctx, txn)
	var conflict *ConflictError
	if err != nil && !errors.As(err, &conflict) {
		return fmt.Errorf("create %s: %w", batch[0].Key(), err)
	}
	return nil
}
