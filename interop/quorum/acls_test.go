package quorum

import "testing"

// aclScript is what Kafka's tools say where access control lists are obeyed; in the notation of script. All are the same anonymous
// user here, the nodes too, so what is denied is what nodes don't do.
const aclScript = `
topics --bootstrap-server BROKER --create --topic t1 --partitions 2
topics --bootstrap-server BROKER --create --topic t2
?~topics --bootstrap-server BROKER --list
~acls --bootstrap-server BROKER --add --allow-principal User:* --operation ClusterAction --operation Alter --operation Describe --operation Create --operation AlterConfigs --cluster
?~acls --bootstrap-server BROKER --list
?~acls --bootstrap-controller CONTROLLER --list
acls --bootstrap-server BROKER --add --deny-principal User:ANONYMOUS --operation Describe --topic t1
?acls --bootstrap-server BROKER --list --topic t1
?acls --bootstrap-controller CONTROLLER --list --topic t1
?~topics --bootstrap-server BROKER --list
?topics --bootstrap-server BROKER --describe --topic t1
topics --bootstrap-server BROKER --delete --topic t1
~acls --bootstrap-server BROKER --add --allow-principal User:ANONYMOUS --producer --topic t2
~acls --bootstrap-controller CONTROLLER --add --allow-principal User:alice --allow-host 10.0.0.0/8 --consumer --topic t --group g --resource-pattern-type prefixed
?~acls --bootstrap-server BROKER --list
?~acls --bootstrap-controller CONTROLLER --list
?~acls --bootstrap-server BROKER --list --principal User:alice
?~acls --bootstrap-server BROKER --list --topic t2 --resource-pattern-type match
topics --bootstrap-server BROKER --alter --topic t2 --partitions 4
topics --bootstrap-server BROKER --delete --topic t2
topics --bootstrap-server BROKER --create --topic t3
?~topics --bootstrap-server BROKER --list
configs --bootstrap-server BROKER --entity-type topics --entity-name t2 --describe
configs --bootstrap-server BROKER --entity-type topics --entity-name t2 --alter --add-config retention.ms=2000
configs --bootstrap-server BROKER --entity-type brokers --entity-default --alter --add-config log.retention.ms=100000000
consumer-groups --bootstrap-server BROKER --describe --group g1
consumer-groups --bootstrap-server BROKER --delete --group g1
acls --bootstrap-server BROKER --add --allow-principal alice --operation Read --topic t1
acls --bootstrap-server BROKER --add --allow-principal User:alice --allow-host 10.0.0.0/99 --operation Read --topic t1
reassign-partitions --bootstrap-server BROKER --list
leader-election --bootstrap-server BROKER --election-type preferred --topic t2 --partition 0
~acls --bootstrap-server BROKER --remove --force --topic t1
~acls --bootstrap-controller CONTROLLER --remove --force --allow-principal User:alice --allow-host 10.0.0.0/8 --consumer --topic t --group g --resource-pattern-type prefixed
acls --bootstrap-server BROKER --remove --force --topic none
?~acls --bootstrap-server BROKER --list
?~topics --bootstrap-server BROKER --list
?#topics --bootstrap-server BROKER --describe --topic t1
`

// TestACLsAcrossKinds is TestToolsAcrossKinds where access control lists are obeyed.
func TestACLsAcrossKinds(t *testing.T) {
	settings := []string{"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true"}
	dir := t.TempDir()
	want := runScript(t, dir, aclScript, kafkaKind, kafkaKind, nil, settings...)
	t.Run("gregor controls Kafka", func(t *testing.T) { runScript(t, dir, aclScript, gregorKind, kafkaKind, want, settings...) })
	t.Run("Kafka controls gregor", func(t *testing.T) { runScript(t, dir, aclScript, kafkaKind, gregorKind, want, settings...) })
	t.Run("gregor alone", func(t *testing.T) { runScript(t, dir, aclScript, gregorKind, gregorKind, want, settings...) })
}
