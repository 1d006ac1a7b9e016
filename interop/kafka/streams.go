package kafka

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

//go:embed streams.xml
var streamsPom []byte

// streamsLibs is where the jars of Kafka Streams lie that aren't Kafka's own.
func streamsLibs() string { return filepath.Join(Home(), "streams") }

var setupStreams = sync.OnceValues(func() (classes string, err error) {
	libs := streamsLibs()
	// The jars may have been put there by scripts/setup-interop.
	if jars, _ := filepath.Glob(filepath.Join(libs, "kafka-streams-4.4.0.jar")); len(jars) == 0 {
		pom := filepath.Join(Home(), "streams.xml")
		if err := os.WriteFile(pom, streamsPom, 0o644); err != nil {
			return "", err
		}
		// Copied aside and renamed, so that a run that is cut short leaves nothing that looks whole.
		cmd := exec.Command("mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeArtifactIds=kafka-streams,rocksdbjni",
			"-DoutputDirectory="+libs+".part")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("fetch the jars of Kafka Streams with Maven (a JDK 17 and mvn must be installed): %w\n%s", err, out)
		}
		if err := os.Rename(libs+".part", libs); err != nil {
			return "", err
		}
	}
	classes = filepath.Join(Root(), ".cache", "interop", "classes")
	if err := os.MkdirAll(classes, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("javac", "-d", classes, "-cp", filepath.Join(Home(), "libs", "*")+":"+filepath.Join(libs, "*"),
		filepath.Join(Root(), "interop", "java", "Streams.java"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the Streams application (scripts/setup-interop installs a JDK): %w\n%s", err, out)
	}
	return classes, nil
})

// StreamsClassPath is what a program with Kafka Streams needs before Kafka's own jars: the applications of interop/java and the jars
// of Kafka Streams, which are fetched when they aren't here yet.
func StreamsClassPath(tb testing.TB) string {
	tb.Helper()
	Setup(tb)
	classes, err := setupStreams()
	if err != nil {
		tb.Fatal(err)
	}
	return classes + ":" + filepath.Join(streamsLibs(), "*")
}
