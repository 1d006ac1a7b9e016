// Package archtest holds the tests of the architecture: which package may import which, and who may touch the machine. It has
// no code of its own. Each rule says why it is there; a change of the rules belongs in ARCHITECTURE.md too.
package archtest
