package node

import (
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// FormatOptions say how the directories of a node are to be formatted. They are the options of Kafka's storage tool.
type FormatOptions struct {
	FS     vfs.FS
	Now    time.Time
	Rand   io.Reader // of directory ids and salts
	Config *config.Broker

	ClusterID string
	// InitialControllers are the voters of a dynamic quorum (kraft.version 1). Without any the quorum is static, and its voters
	// are those of controller.quorum.voters.
	InitialControllers []raft.Voter
	// Standalone makes this node the only voter of a dynamic quorum.
	Standalone bool
	// NoInitialControllers formats a controller that is to join a dynamic quorum later.
	NoInitialControllers bool
	// ReleaseVersion is the metadata.version to begin with and decides the other features' levels; zero is the latest.
	ReleaseVersion metadata.Version
	// Features overrides levels by name.
	Features map[string]int16
	// Scram are credentials to begin with, in the form of --add-scram.
	Scram []string
	// IgnoreFormatted leaves directories alone that are formatted already, instead of refusing.
	IgnoreFormatted bool
	// Print is told what was done, a line at a time; nil for nobody.
	Print func(line string)
}

// Format makes the directories of a node ready for their first start: meta.properties in each, and in the metadata directory
// of a controller the bootstrap snapshot. Nothing is written when something is wrong.
func Format(o FormatOptions) error {
	dirs := Directories(o.Config)
	version, levels, err := o.levels()
	if err != nil {
		return err
	}
	records, err := o.bootstrapRecords(version, levels)
	if err != nil {
		return err
	}
	empty, used, err := surveyDirs(o.FS, dirs, o.Config.NodeID, o.ClusterID)
	if err != nil {
		return err
	}
	for d := range used {
		if !o.IgnoreFormatted {
			return fmt.Errorf("log directory %s is already formatted; use --ignore-formatted to leave it alone and format the others", d)
		}
	}
	if len(empty) == 0 {
		o.print("All of the log directories are already formatted.")
		return nil
	}
	taken := map[uuid.UUID]bool{}
	for _, m := range used {
		taken[m.DirectoryID] = true
	}
	voters, err := o.voters()
	if err != nil {
		return err
	}
	for _, dir := range empty {
		kind, id := "data directory", uuid.Zero
		if dir == o.Config.MetadataLogDir && o.Config.Roles.Controller {
			kind = "metadata directory"
			if len(voters) > 0 || o.NoInitialControllers && levels[metadata.FeatureKRaft] > 0 {
				kind = "dynamic metadata directory"
			}
			if i := slices.IndexFunc(voters, func(v raft.Voter) bool { return v.ID == o.Config.NodeID }); i >= 0 {
				kind, id = "dynamic metadata voter directory", voters[i].DirectoryID
			}
		}
		for id == uuid.Zero || taken[id] {
			if id, err = uuid.New(o.Rand); err != nil {
				return err
			}
		}
		taken[id] = true
		o.print(fmt.Sprintf("Formatting %s %s with metadata.version %s.", kind, dir, version))
		if err := o.formatDir(dir, kind != "data directory", id, levels, voters, records); err != nil {
			return fmt.Errorf("format %s: %w", dir, err)
		}
	}
	return nil
}

// FormatNew formats the directories of a node on this machine as a new cluster of its own, unless one of them is formatted or
// damaged already. It returns the id of the cluster that it made, "" when there was nothing to do.
func FormatNew(c *config.Broker) (clusterID string, err error) {
	for _, d := range Directories(c) {
		if _, err := log.ReadMetaProperties(vfs.OS, d); !errors.Is(err, fs.ErrNotExist) {
			return "", nil // what is wrong, if anything, is for Start to say
		}
	}
	id, err := uuid.New(cryptorand.Reader)
	if err != nil {
		return "", err
	}
	return id.String(), Format(FormatOptions{FS: vfs.OS, Now: clock.System.Now(), Rand: cryptorand.Reader, Config: c,
		ClusterID: id.String(), Standalone: len(c.QuorumVoters) == 0})
}

// formatDir writes one directory: the snapshot first, so that a directory with a meta.properties is complete.
func (o FormatOptions) formatDir(dir string, metadataDir bool, id uuid.UUID, levels map[string]int16, voters []raft.Voter, records []message.Versioned) error {
	if err := makeDir(o.FS, dir); err != nil {
		return err
	}
	if metadataDir {
		err := raft.WriteBootstrapSnapshot(raft.BootstrapOptions{FS: o.FS, Dir: dir, KRaftVersion: levels[metadata.FeatureKRaft], Voters: voters, Records: records, Now: o.Now})
		if err != nil {
			return err
		}
	}
	return log.WriteMetaProperties(o.FS, dir, log.MetaProperties{Version: 1, ClusterID: o.ClusterID, NodeID: o.Config.NodeID, DirectoryID: id}, o.Now)
}

// makeDir makes a directory, and those above it that are missing, and syncs the entries: a file that was synced is lost all the
// same when a power failure takes the directory that it is in.
func makeDir(fsys vfs.FS, dir string) error {
	var made []string // the parents of what is missing
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		_, err := fsys.Stat(d)
		if err == nil || d == filepath.Dir(d) {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, filepath.Dir(d))
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	for _, d := range made {
		if err := fsys.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}

func (o FormatOptions) print(line string) {
	if o.Print != nil {
		o.Print(line)
	}
}

// dynamic says whether the quorum's voters are kept in the metadata log.
func (o FormatOptions) dynamic() bool { return o.Standalone || len(o.InitialControllers) > 0 }

// levels decides metadata.version and the level of every feature.
func (o FormatOptions) levels() (metadata.Version, map[string]int16, error) {
	version := o.ReleaseVersion
	if level, ok := o.Features[metadata.FeatureMetadataVersion]; ok {
		if version != 0 {
			return 0, nil, errors.New("use --release-version instead of --feature metadata.version=X to avoid ambiguity")
		}
		version = metadata.Version(level)
	}
	latest := metadata.LatestProduction
	if o.Config.UnstableFeatureVersions {
		latest = metadata.LatestTesting
	}
	switch {
	case version == 0:
		version = latest
	case !version.Known():
		return 0, nil, fmt.Errorf("metadata.version %d is not supported: the levels are %d to %d", int16(version), metadata.MinVersion, latest)
	case version > latest:
		return 0, nil, fmt.Errorf("metadata.version %s is not yet stable", version)
	}
	levels := map[string]int16{metadata.FeatureMetadataVersion: int16(version)}
	for _, f := range metadata.Features {
		level, given := o.Features[f.Name]
		switch {
		case f.Name == metadata.FeatureKRaft && given && (level > 0) != o.dynamic() && !o.NoInitialControllers:
			return 0, nil, fmt.Errorf("cannot set kraft.version to %d: it is 1 with --standalone or --initial-controllers and 0 without", level)
		case f.Name == metadata.FeatureKRaft && !given:
			if o.dynamic() {
				level = 1
			}
		case !given:
			level = f.Default(version)
		}
		if err := f.Check(level, version); err != nil {
			return 0, nil, err
		}
		levels[f.Name] = level
	}
	for name := range o.Features {
		if _, ok := levels[name]; !ok {
			return 0, nil, fmt.Errorf("unsupported feature: %s; supported features are %s", name, strings.Join(slices.Sorted(maps.Keys(levels)), ", "))
		}
	}
	return version, levels, nil
}

// bootstrapRecords are what a new cluster begins with: metadata.version, then the other features that have a level, by name,
// then credentials. kraft.version is a control record, not one of these.
func (o FormatOptions) bootstrapRecords(version metadata.Version, levels map[string]int16) ([]message.Versioned, error) {
	records := []message.Versioned{feature(metadata.FeatureMetadataVersion, int16(version))}
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		if name != metadata.FeatureMetadataVersion && name != metadata.FeatureKRaft && levels[name] > 0 {
			records = append(records, feature(name, levels[name]))
		}
	}
	if len(o.Scram) == 0 {
		return records, nil
	}
	if version < metadata.V3_5_IV2 {
		return nil, fmt.Errorf("SCRAM is only supported in metadata.version %s or later", metadata.V3_5_IV2)
	}
	for _, s := range o.Scram {
		r, err := ParseScram(s, o.Rand)
		if err != nil {
			return nil, err
		}
		records = append(records, message.Versioned{Message: r})
	}
	return records, nil
}

func feature(name string, level int16) message.Versioned {
	r := &message.FeatureLevelRecord{}
	r.Reset()
	r.Name, r.FeatureLevel = name, level
	return message.Versioned{Message: r}
}

// voters are the first voters of a dynamic quorum; none for a static one.
func (o FormatOptions) voters() ([]raft.Voter, error) {
	c := o.Config
	if o.Standalone {
		if !c.Roles.Controller {
			return nil, errors.New("--standalone is for controllers only, and process.roles has no controller")
		}
		l := c.AdvertisedControllers[0]
		host := l.Host
		if host == "" {
			host = "localhost"
		}
		id, err := uuid.New(o.Rand)
		if err != nil {
			return nil, err
		}
		return []raft.Voter{newVoter(c.NodeID, id, l.Name, host, l.Port)}, nil
	}
	if len(o.InitialControllers) > 0 {
		voters := slices.Clone(o.InitialControllers)
		for i := range voters {
			for j := range voters[i].Endpoints {
				voters[i].Endpoints[j].Name = c.ControllerListeners[0]
			}
		}
		return voters, nil
	}
	if c.Roles.Controller && len(c.QuorumVoters) == 0 && !o.NoInitialControllers {
		return nil, errors.New("because controller.quorum.voters is not set on this controller, one of --standalone, --initial-controllers or --no-initial-controllers is needed")
	}
	return nil, nil
}

func newVoter(id int32, dir uuid.UUID, listener, host string, port int) raft.Voter {
	return raft.Voter{ReplicaKey: raft.ReplicaKey{ID: id, DirectoryID: dir}, KRaftVersions: raft.KRaftVersions,
		Endpoints: []raft.Endpoint{{Name: listener, Host: host, Port: uint16(port)}}}
}

// ParseInitialControllers reads a list of id@host:port:directory, as --initial-controllers takes it.
func ParseInitialControllers(s string) ([]raft.Voter, error) {
	var out []raft.Voter
	for _, one := range strings.Split(s, ",") {
		one = strings.TrimSpace(one)
		i := strings.LastIndexByte(one, ':')
		if i < 0 {
			return nil, fmt.Errorf("initial controller %q: want id@host:port:directory", one)
		}
		v, err := config.ParseQuorumVoter(one[:i])
		if err != nil {
			return nil, fmt.Errorf("initial controller %q: want id@host:port:directory", one)
		}
		dir, err := uuid.Parse(one[i+1:])
		if err != nil {
			return nil, fmt.Errorf("initial controller %q: %w", one, err)
		}
		if dir.Reserved() {
			return nil, fmt.Errorf("initial controller %q: the directory id is reserved", one)
		}
		for _, o := range out {
			if o.ID == v.ID || o.DirectoryID == dir {
				return nil, fmt.Errorf("initial controller %q: node or directory is there twice", one)
			}
		}
		out = append(out, newVoter(v.ID, dir, "", v.Host, v.Port))
	}
	return out, nil
}

// Directories are all directories of a node, sorted: its log directories and the one of the metadata log.
func Directories(c *config.Broker) []string {
	dirs := slices.Clone(c.LogDirs)
	if !slices.Contains(dirs, c.MetadataLogDir) {
		dirs = append(dirs, c.MetadataLogDir)
	}
	slices.Sort(dirs)
	return dirs
}

// surveyDirs tells which directories are formatted. They must agree on node and cluster, with each other and with what is
// given; clusterID "" agrees with all.
func surveyDirs(fsys vfs.FS, dirs []string, nodeID int32, clusterID string) (empty []string, used map[string]log.MetaProperties, err error) {
	used = map[string]log.MetaProperties{}
	for _, d := range dirs {
		m, err := log.ReadMetaProperties(fsys, d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			empty = append(empty, d)
			continue
		case err != nil:
			return nil, nil, err
		case m.NodeID != nodeID:
			return nil, nil, fmt.Errorf("%s/%s is of node %d, but node.id is %d", d, log.MetaPropertiesFile, m.NodeID, nodeID)
		case clusterID != "" && m.ClusterID != clusterID:
			return nil, nil, fmt.Errorf("%s/%s is of cluster %s, not of %s", d, log.MetaPropertiesFile, m.ClusterID, clusterID)
		}
		clusterID = m.ClusterID
		used[d] = m
	}
	return empty, used, nil
}
