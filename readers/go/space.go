package reader

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// space is a namespace in one store.
type space struct {
	namespace
	gate    *Gate
	from    store
	url     string // of the store, without login
	of      *identity
	where   string
	mu      sync.Mutex
	entry   *entry
	sources map[string]*Schema
}

// names lists the tables but those whose rows say nothing to readers; none of a nil entry.
func (e *entry) names() []string {
	names := []string{}
	if e == nil {
		return names
	}
	for name := range e.Tables {
		if !strings.HasPrefix(name, "_due.") && !strings.HasPrefix(name, "_due_at.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// remembered returns the newest pointer that this client has seen, and its entry if it is known.
func (s *space) remembered() (*pointer, *entry) {
	s.gate.mu.Lock()
	seen := s.gate.seen[s.of.UUID]
	s.gate.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen == nil {
		return &pointer{}, nil
	} else if s.entry != nil && s.entry.Version == seen.visible && s.entry.Digest == seen.digest {
		return seen, s.entry
	}
	return seen, nil
}

// note checks a pointer against the one that was seen before its request: a version never goes back.
func (s *space) note(before, found *pointer) error {
	switch {
	case strings.HasPrefix(found.writer, "{"):
		return removedError(s.where, found)
	case before.visible > 0 && (found.isFilling() || found.visible == 0):
		return s.beingFilled()
	case found.visible < before.visible:
		return regressed("%s shows version %d, this client has already seen version %d: the store lost versions; restart the writer or run `tidegate recover`", s.where, found.visible, before.visible)
	case found.visible == before.visible && found.digest != before.digest && before.digest != "":
		return regressed("%s shows version %d with digest %s, this client has seen it with digest %s: the store holds another history now", s.where, found.visible, found.digest, before.digest)
	}
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if seen := s.gate.seen[s.of.UUID]; seen == nil || found.visible > seen.visible {
		s.gate.seen[s.of.UUID] = found
	}
	return nil
}

func (s *space) beingFilled() error {
	return notVerified("%s is being rebuilt or filled: nothing can be read before its newest version is back; read again later", s.where)
}

func (s *space) newestPointer(ctx context.Context) (*pointer, error) {
	before, known := s.remembered()
	found, err := s.pointer(ctx, known.versionOr0())
	if err == nil {
		err = s.note(before, found)
	}
	return found, err
}

func (e *entry) versionOr0() int64 {
	if e == nil {
		return 0
	}
	return e.Version
}

// entryOf returns the entry of the visible version, which came with the pointer unless it was known.
func (s *space) entryOf(ctx context.Context, found *pointer) (*entry, error) {
	if found.isFilling() {
		return nil, s.beingFilled()
	} else if found.visible == 0 {
		return nil, s.noVersion()
	}
	s.mu.Lock()
	of := s.entry
	s.mu.Unlock()
	if of != nil && of.Version == found.visible && of.Digest == found.digest {
		return of, nil
	}
	of = nil
	if found.latest != "" {
		latest, err := entryIn(s.where, found.latest)
		if err != nil {
			return nil, err
		}
		if latest.Version == found.visible {
			of = latest
		}
	}
	if of == nil {
		var err error
		if of, err = s.entryAt(ctx, found.visible); err != nil {
			return nil, err
		}
	}
	if of.Digest != found.digest {
		return nil, corrupt("%s: version %d has digest %s in the pointer, %s in the catalog: restore the store from a copy", s.where, of.Version, found.digest, of.Digest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entry == nil || s.entry.Version < of.Version || s.entry.Version == of.Version {
		s.entry = of
	}
	return of, nil
}

// entryOrNone is entryOf, which is nil before the first version.
func (s *space) entryOrNone(ctx context.Context, found *pointer) (*entry, error) {
	if found.visible == 0 && !found.isFilling() {
		return nil, nil
	}
	return s.entryOf(ctx, found)
}

func (s *space) noVersion() error {
	return configError("namespace %s has no version yet: wait for its first batch", s.of.Name)
}

// entryAt reads the entry of a version that was visible.
func (s *space) entryAt(ctx context.Context, version int64) (*entry, error) {
	for look := 0; look < 2; look++ {
		if of, err := s.catalog(ctx, version); err != nil || of != nil && of.Version == version {
			return of, err
		}
		found, err := s.newestPointer(ctx)
		if err != nil {
			return nil, err
		} else if found.isFilling() { // its entries are made again, too
			return nil, s.beingFilled()
		} else if err := s.checkKept(version, found); err != nil {
			return nil, err
		}
	}
	return nil, corrupt("%s: version %d is visible and has no entry in the catalog: `tidegate repair` puts it back", s.where, version)
}

// checkKept refuses a version that was retired, or that is not visible: it may be half applied.
func (s *space) checkKept(version int64, found *pointer) error {
	if version < found.horizon {
		return expired("%s: version %d was retired, the oldest that can be read is %d", s.where, version, found.horizon)
	}
	if version > found.visible {
		return configError("version %d of namespace %s is not visible yet, the visible version is %d", version, s.of.Name, found.visible)
	}
	return nil
}

func (s *space) newestEntry(ctx context.Context) (*entry, error) {
	found, err := s.newestPointer(ctx)
	if err != nil {
		return nil, err
	}
	return s.entryOf(ctx, found)
}

// views returns tables at the entry's version, with their schemas. A nil entry is that of version 0.
func (s *space) views(ctx context.Context, of *entry, tables []string) (map[string]*view, error) {
	if of == nil {
		return nil, s.noVersion()
	}
	views, missing := map[string]*view{}, []string{}
	s.mu.Lock()
	for _, table := range tables {
		at, exists := of.Tables[table]
		if !exists {
			s.mu.Unlock()
			return nil, configError("there is no table %q at version %d of namespace %s; the tables there are: %s", table, of.Version, s.of.Name, strings.Join(of.names(), ", "))
		}
		views[table] = &view{table, of.Version, at.Start, of.DecidedAtUs, max(at.Stride, 1), s.of.KeyGroups, s.sources[at.SchemaID]}
		if views[table].schema == nil {
			missing = append(missing, at.SchemaID)
		}
	}
	s.mu.Unlock()
	if len(missing) == 0 {
		return views, nil
	}
	found, err := s.schemas(ctx, missing)
	if err != nil {
		return nil, err
	}
	for table, at := range views {
		id := of.Tables[table].SchemaID
		content, exists := found[id]
		if at.schema != nil {
			continue
		} else if !exists { // an error of a retired version is a SnapshotExpiredError
			return nil, s.noSchema(ctx, of.Version, table, id)
		}
		schema, err := ParseSchema(content)
		if is[*ConfigError](err) {
			return nil, configError("%s, table %s, schema %s: %w", s.where, table, id, err)
		} else if err != nil {
			return nil, corrupt("%s, table %s, schema %s: %w", s.where, table, id, err)
		}
		at.schema = schema
		s.mu.Lock()
		if len(s.sources) > schemasMax {
			s.sources = map[string]*Schema{}
		}
		s.sources[id] = schema
		s.mu.Unlock()
	}
	return views, nil
}

func (s *space) noSchema(ctx context.Context, version int64, table, id string) error {
	found, err := s.newestPointer(ctx)
	if err == nil {
		err = s.checkKept(version, found)
	}
	if err == nil {
		err = corrupt("%s: version %d has no schema %s of table %s: restore the store from a copy", s.where, version, id, table)
	}
	return err
}

// readNewest reads keys at the newest version: first at the version seen last, together with the pointer. It reads them
// again if the pointer names a newer version, or if the version was retired meanwhile.
func (s *space) readNewest(ctx context.Context, keys map[string][]Key) (*Answer, error) {
	before, of := s.remembered()
	if of != nil && s.isOptimistic() {
		if reads, err := s.prepare(ctx, of, keys); err == nil {
			found, errRows := s.read(ctx, reads, of.Version, &of.Version)
			if found == nil {
				return nil, errRows
			}
			if err := s.note(before, found); err != nil {
				return nil, err
			}
			newest, err := s.entryOf(ctx, found)
			if err != nil && !is[*SnapshotExpiredError](err) {
				return nil, err
			}
			isNewest := err == nil && newest.Version == of.Version && newest.Digest == of.Digest
			if isNewest && errRows == nil {
				return s.answer(of, reads, keys)
			} else if isNewest && !is[*SnapshotExpiredError](errRows) {
				return nil, errRows
			}
			of = newest
		} else {
			of = nil // at the newest version it may be none
		}
	} else {
		of = nil
	}
	var answer *Answer
	err := again(func() (err error) {
		if of == nil {
			of, err = s.newestEntry(ctx)
		}
		if err == nil {
			answer, err = s.readAt(ctx, of, keys)
		}
		of = nil
		return err
	})
	return answer, err
}

// again reads at the newest version, and once more if that was retired meanwhile: the pointer names a newer one then.
func again(read func() error) error {
	for try := 1; ; try++ {
		err := read()
		if !is[*SnapshotExpiredError](err) || try == triesMax {
			return err
		}
	}
}

func (s *space) readAt(ctx context.Context, of *entry, keys map[string][]Key) (*Answer, error) {
	reads, err := s.prepare(ctx, of, keys)
	if err == nil {
		_, err = s.read(ctx, reads, of.Version, nil)
	}
	if err != nil {
		return nil, err
	}
	return s.answer(of, reads, keys)
}

func (s *space) prepare(ctx context.Context, of *entry, keys map[string][]Key) ([]*keysRead, error) {
	var tables []string
	for table := range keys {
		tables = append(tables, table)
	}
	views, err := s.views(ctx, of, tables)
	if err != nil {
		return nil, err
	}
	var all []*keysRead
	for table, each := range keys {
		reads, err := byGroup(views[table], each, keysAtOnce)
		if err != nil {
			return nil, err
		}
		all = append(all, reads...)
	}
	return all, nil
}

const keysAtOnce = 100

func (s *space) answer(of *entry, reads []*keysRead, keys map[string][]Key) (*Answer, error) {
	answer := &Answer{of.Version, make(map[string][]Row, len(keys)), make(map[string]*Schema, len(keys))}
	for table, each := range keys {
		answer.Rows[table] = make([]Row, len(each))
	}
	for _, read := range reads {
		answer.Schemas[read.of.table] = read.of.schema
		for at, stored := range read.values {
			row, err := s.rowOf(read.of, read.keys[at], stored)
			if err != nil {
				return nil, err
			}
			answer.Rows[read.of.table][read.places[at]] = row
		}
	}
	return answer, nil
}

func (s *space) rowOf(of *view, key, stored []byte) (Row, error) {
	if stored == nil {
		return nil, nil
	}
	row, err := of.schema.DecodeValue(stored, of.decidedAtUs)
	if err != nil {
		return nil, corrupt("%s, table %s, key %.60q: %w", s.where, of.table, key, err)
	}
	return row, nil
}
