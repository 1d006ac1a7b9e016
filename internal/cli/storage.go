package cli

import (
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gregor/internal/clock"
	"gregor/internal/log"
	"gregor/internal/metadata"
	"gregor/internal/node"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

func newStorage() *cobra.Command {
	c := &cobra.Command{
		Use:   "storage",
		Short: "Format the directories of a node, and look at them",
		Long:  "Format the directories of a node before its first start, as Kafka's kafka-storage.sh does, and look at what is there.",
	}
	c.AddCommand(newStorageFormat(), newStorageInfo(), newRandomUUID(), newVersionMapping(), newFeatureDependencies())
	return c
}

func newStorageFormat() *cobra.Command {
	var file, clusterID, initial, release string
	var features, scram []string
	var standalone, none, ignore bool
	c := &cobra.Command{
		Use:   "format --config FILE --cluster-id ID [--standalone | --initial-controllers LIST | --no-initial-controllers]",
		Short: "Make a node's directories ready for its first start",
		Long: `Write meta.properties into every directory of the node, and the first snapshot into a controller's metadata directory.

Every node of a cluster is formatted with the same cluster id ("gregor storage random-uuid" makes one). Who votes in
the metadata quorum is either fixed by controller.quorum.voters in the configuration, or kept in the metadata itself
and given here: --standalone for a single controller, --initial-controllers for several.`,
		Example: `  gregor storage format --config server.properties --cluster-id $(gregor storage random-uuid) --standalone
  gregor storage format -c server.properties -t MkU3OEVBNTcwNTJENDM2Qg \
    --initial-controllers 1@a:9093:JEXY6aqzQY-32P5TStzaFg,2@b:9093:MvDxzVmcRsaTz33bUuRU6A,3@c:9093:07R5amHmR32VDA6jHkGbTA`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := loadConfig(file, nil)
			if err != nil {
				return err
			}
			o := node.FormatOptions{FS: vfs.OS, Now: clock.System.Now(), Rand: cryptorand.Reader, Config: config, ClusterID: clusterID,
				Standalone: standalone, NoInitialControllers: none, IgnoreFormatted: ignore, Scram: scram,
				Print: func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }}
			if initial != "" {
				if o.InitialControllers, err = node.ParseInitialControllers(initial); err != nil {
					return err
				}
			}
			if release != "" {
				if o.ReleaseVersion, err = metadata.ParseVersion(release); err != nil {
					return err
				}
			}
			if o.Features, err = parseFeatures(features); err != nil {
				return err
			}
			return node.Format(o)
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "config", "c", "", "the node's server.properties `file`")
	f.StringVarP(&clusterID, "cluster-id", "t", "", "the `id` of the cluster, the same for all its nodes")
	f.BoolVarP(&standalone, "standalone", "s", false, "make this controller the only voter of a quorum whose voters can change")
	f.StringVarP(&initial, "initial-controllers", "I", "", "the first voters of a quorum whose voters can change, as a `list` of id@host:port:directory; the same for all nodes")
	f.BoolVarP(&none, "no-initial-controllers", "N", false, "this controller joins a quorum later")
	f.StringArrayVarP(&features, "feature", "f", nil, "a feature's first level, as `name=level`; may be given several times")
	f.StringVarP(&release, "release-version", "r", "", "the `release` whose feature levels the cluster begins with, such as 3.9 or 4.4-IV2 (default "+metadata.LatestProduction.String()+")")
	f.StringArrayVarP(&scram, "add-scram", "S", nil, "a `credential` to begin with, such as 'SCRAM-SHA-256=[name=alice,password=alice-secret]'; may be given several times")
	f.BoolVarP(&ignore, "ignore-formatted", "g", false, "leave alone what is formatted already")
	for _, name := range []string{"config", "cluster-id"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	c.MarkFlagsMutuallyExclusive("standalone", "initial-controllers", "no-initial-controllers")
	return c
}

// parseFeatures reads name=level pairs.
func parseFeatures(args []string) (map[string]int16, error) {
	out := map[string]int16{}
	for _, a := range args {
		name, text, ok := strings.Cut(a, "=")
		level, err := strconv.ParseInt(text, 10, 16)
		if !ok || err != nil || level < 0 {
			return nil, fmt.Errorf("feature %q: want name=level", a)
		}
		out[strings.TrimSpace(name)] = int16(level)
	}
	return out, nil
}

func newStorageInfo() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "info --config FILE",
		Short: "Tell how a node's directories are formatted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := loadConfig(file, nil)
			if err != nil {
				return err
			}
			text, problems := storageInfo(node.Directories(config))
			fmt.Fprint(cmd.OutOrStdout(), text)
			if problems {
				return errSilent
			}
			return nil
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the node's server.properties `file`")
	if err := c.MarkFlagRequired("config"); err != nil {
		panic(err)
	}
	return c
}

// storageInfo describes directories in the words of Kafka's tool.
func storageInfo(dirs []string) (text string, bad bool) {
	var found, problems []string
	var first *log.MetaProperties
	for _, d := range dirs {
		st, err := vfs.OS.Stat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, d+" does not exist")
			continue
		case err != nil:
			problems = append(problems, err.Error())
			continue
		case !st.IsDir():
			problems = append(problems, d+" is not a directory")
			continue
		}
		found = append(found, d)
		m, err := log.ReadMetaProperties(vfs.OS, d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, d+" is not formatted.")
		case err != nil:
			problems = append(problems, fmt.Sprintf("Error loading %s/%s: %v", d, log.MetaPropertiesFile, err))
		case first == nil:
			first = &m
		case first.ClusterID != m.ClusterID:
			problems = append(problems, "Mismatched cluster IDs between storage directories.")
		case first.NodeID != m.NodeID:
			problems = append(problems, "Mismatched node IDs between storage directories.")
		}
	}
	var b strings.Builder
	list := func(one, many string, items []string) {
		if len(items) == 1 {
			many = one
		}
		if len(items) > 0 {
			fmt.Fprintf(&b, "%s:\n  %s\n\n", many, strings.Join(items, "\n  "))
		}
	}
	list("Found log directory", "Found log directories", found)
	if first != nil {
		fmt.Fprintf(&b, "Found metadata: {cluster.id=%s, directory.id=%s, node.id=%d, version=%d}\n\n", first.ClusterID, first.DirectoryID, first.NodeID, first.Version)
	}
	list("Found problem", "Found problems", problems)
	return b.String(), len(problems) > 0
}

func newRandomUUID() *cobra.Command {
	return &cobra.Command{
		Use:   "random-uuid",
		Short: "Print a new id for a cluster or a directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := uuid.New(cryptorand.Reader)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		},
	}
}

func newVersionMapping() *cobra.Command {
	var release string
	c := &cobra.Command{
		Use:   "version-mapping",
		Short: "Tell the feature levels that belong to a release",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := metadata.LatestProduction
			if release != "" {
				var err error
				if v, err = metadata.ParseVersion(release); err != nil {
					return err
				}
			} else {
				release = v.String()
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "metadata.version=%d (%s)\n", int16(v), release)
			for _, f := range metadata.Features {
				fmt.Fprintf(out, "%s=%d\n", f.Name, f.Default(v))
			}
			return nil
		},
	}
	c.Flags().StringVarP(&release, "release-version", "r", "", "the `release`, such as 3.9 or 4.4-IV2 (default "+metadata.LatestProduction.String()+")")
	return c
}

func newFeatureDependencies() *cobra.Command {
	var features []string
	c := &cobra.Command{
		Use:   "feature-dependencies --feature NAME=LEVEL",
		Short: "Tell what a feature's level needs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parsed, err := parseFeatures(features)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			for _, name := range slices.Sorted(maps.Keys(parsed)) {
				level := parsed[name]
				if name == metadata.FeatureMetadataVersion {
					if !metadata.Version(level).Known() {
						return fmt.Errorf("unknown metadata.version %d", level)
					}
					fmt.Fprintf(out, "%s=%d (%s) has no dependencies.\n", name, level, metadata.Version(level))
					continue
				}
				f, ok := metadata.FeatureByName(name)
				if !ok {
					return fmt.Errorf("unknown feature: %s", name)
				}
				if err := f.Check(level, metadata.LatestTesting); err != nil {
					return err
				}
				need := metadata.Version(0)
				for _, l := range f.Levels {
					if l.Level == level {
						need = l.Needs
					}
				}
				if need == 0 {
					fmt.Fprintf(out, "%s=%d has no dependencies.\n", name, level)
					continue
				}
				fmt.Fprintf(out, "%s=%d requires:\n    metadata.version=%d (%s)\n", name, level, int16(need), need)
			}
			return nil
		},
	}
	c.Flags().StringArrayVarP(&features, "feature", "f", nil, "the feature and its level, as `name=level`; may be given several times")
	if err := c.MarkFlagRequired("feature"); err != nil {
		panic(err)
	}
	return c
}
