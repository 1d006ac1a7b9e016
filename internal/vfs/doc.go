// Package vfs is the only door to the disk.
//
// FS and File are small on purpose: what a storage engine that must survive power loss needs, each method saying what it
// promises about durability. OS is the machine's file system. Mem keeps, beside the current state, the state that has been
// synced, per file and per directory entry, and can produce "the disk after power loss"; a Plan injects errors.
//
// Paths are slash-separated host paths. Everything here is safe for concurrent use unless a method says otherwise.
package vfs
