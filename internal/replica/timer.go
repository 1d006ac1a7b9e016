package replica

import "time"

// Timer calls a function once its time has come, as a *time.Timer of time.AfterFunc does.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// AfterFunc makes a Timer that calls f after d. f must not be called before AfterFunc has returned.
type AfterFunc func(d time.Duration, f func()) Timer

func systemAfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// goes has f done beside the caller.
func (m *Manager) goes(f func()) {
	if m.oneThread {
		m.after(0, f)
		return
	}
	go f()
}
