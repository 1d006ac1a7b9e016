package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadConfig(t *testing.T) {
	c, err := loadConfig("", []string{"log.dirs=/x", "num.partitions = 7"})
	if err != nil {
		t.Fatal(err)
	}
	if c.LogDirs[0] != "/x" || c.NumPartitions != 7 || !c.Roles.Combined() || c.AdvertisedListeners[0].Address() != "localhost:9092" {
		t.Errorf("built-in configuration with overrides: %+v", c)
	}
	if keys := c.NotHonoured(); len(keys) > 0 {
		t.Errorf("the built-in configuration has keys without effect: %v", keys)
	}
	file := filepath.Join(t.TempDir(), "server.properties")
	if err := os.WriteFile(file, []byte("node.id=x\nnum.partitions=0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = loadConfig(file, []string{"log.segment.bytes=1"})
	for _, want := range []string{
		file + ":1: Invalid value x for configuration node.id: Not a number of type INT",
		file + ":2: Invalid value 0 for configuration num.partitions: Value must be at least 1 (allowed: [1,...])",
		"--override: Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
		file + `: Missing required configuration "process.roles" which has no default value.`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
	if _, err := loadConfig("", []string{"nonsense"}); err == nil || !strings.Contains(err.Error(), "want key=value") {
		t.Errorf("a bad override: %v", err)
	}
	if _, err := loadConfig("/nowhere/server.properties", nil); err == nil || !strings.Contains(err.Error(), "/nowhere/server.properties") {
		t.Errorf("a missing file: %v", err)
	}
}
