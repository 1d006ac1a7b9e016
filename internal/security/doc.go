// Package security decides who may do what.
//
// # Access control
//
// ACLs is an immutable index of access control entries, made for one question: may this requester do that operation on this
// resource? An Edit makes the next version from it and shares with it what didn't change, so that one entry among 100,000 costs
// what one entry costs. A lookup looks at the entries of the requester's principal and of "User:*" whose pattern names the
// resource, and at no others.
//
// The rules are those of Kafka's StandardAuthorizer (KIP-801): super users may do all; an entry that denies wins over those that
// allow; what no entry speaks of is allowed if "allow.everyone.if.no.acl.found" says so and there is no entry for the resource
// at all, whoever it is about; READ, WRITE, DELETE and ALTER allow DESCRIBE as well, and ALTER_CONFIGS allows DESCRIBE_CONFIGS,
// but to deny them doesn't deny what they imply. Hosts may be ranges of addresses (KIP-1276, metadata version 4.4-IV1).
//
// Authorizer holds the settings and the version of the index that is in force. It knows nothing of the metadata log; whoever
// follows that hands it the entries.
//
// # Concurrency
//
// ACLs may be read by any number of goroutines. An Edit belongs to one. Authorizer's Load is called by one goroutine; everything
// else of it by any.
package security
