package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gregor/client"
	"gregor/internal/metadata"
)

func newFeature(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "feature",
		Short: "Look at the cluster's feature levels, and move them",
		Long: `Look at the cluster's feature levels, and move them up and down, as Kafka's kafka-features.sh does.

A level is what all nodes of the cluster can do and have agreed on. metadata.version says which records the metadata has; it is
raised once all nodes run the new release.`,
		Example: `  gregor feature describe
  gregor feature upgrade --release-version 4.4
  gregor feature upgrade --feature group.version=1 --dry-run
  gregor feature disable --feature share.version`,
	}
	c := connectFlags(cmd)
	c.controllerFlags(cmd)
	cmd.AddCommand(newFeatureDescribe(e, c),
		newFeatureMove(e, c, "upgrade", "Raise the levels of features", client.Upgrade),
		newFeatureMove(e, c, "downgrade", "Lower the levels of features", client.SafeDowngrade),
		newFeatureDisable(e, c), newVersionMapping(), newFeatureDependencies())
	return cmd
}

// levelText names metadata.version's levels and prints others as they are.
func levelText(feature string, level int16) string {
	if feature == metadata.FeatureMetadataVersion {
		if v := metadata.Version(level); v.Known() {
			return v.String()
		}
		return fmt.Sprintf("UNKNOWN %d", level)
	}
	return strconv.Itoa(int(level))
}

func newFeatureDescribe(e *Env, c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "List features: what is supported and what the level is",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				features, epoch, err := cl.FeaturesAsOf(ctx)
				if err != nil {
					return err
				}
				if output == "json" {
					return printFeaturesJSON(e.Stdout, features, epoch)
				}
				at := "-"
				if epoch >= 0 {
					at = strconv.FormatInt(epoch, 10)
				}
				for _, f := range features {
					// The form of Kafka's tool.
					fmt.Fprintf(e.Stdout, "Feature: %-40s  SupportedMinVersion: %-15s  SupportedMaxVersion: %-15s  FinalizedVersionLevel: %-15s  Epoch: %s\n",
						f.Name, levelText(f.Name, f.MinSupported), levelText(f.Name, f.MaxSupported), levelText(f.Name, f.Level), at)
				}
				return nil
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func printFeaturesJSON(w io.Writer, features []client.Feature, epoch int64) error {
	type row struct {
		Feature      string `json:"feature"`
		MinSupported int16  `json:"minSupported"`
		MaxSupported int16  `json:"maxSupported"`
		Level        int16  `json:"level"`
		Release      string `json:"release,omitempty"` // of metadata.version
		Epoch        int64  `json:"epoch"`
	}
	rows := []row{}
	for _, f := range features {
		r := row{Feature: f.Name, MinSupported: f.MinSupported, MaxSupported: f.MaxSupported, Level: f.Level, Epoch: epoch}
		if f.Name == metadata.FeatureMetadataVersion {
			r.Release = levelText(f.Name, f.Level)
		}
		rows = append(rows, r)
	}
	return printJSON(w, rows)
}

// releaseLevels are the levels that belong to a release; with nothing of 0 when going up.
func releaseLevels(release string, up bool) (map[string]int16, error) {
	v, err := metadata.ParseVersion(release)
	if err != nil {
		return nil, err
	}
	levels := map[string]int16{metadata.FeatureMetadataVersion: int16(v)}
	for _, f := range metadata.Features {
		if level := f.Default(v); level > 0 || !up {
			levels[f.Name] = level
		}
	}
	return levels, nil
}

func newFeatureMove(e *Env, c *connection, verb, short string, how client.FeatureUpgrade) *cobra.Command {
	var features []string
	var release, metadataVersion, output string
	var unsafe, dryRun bool
	cmd := &cobra.Command{
		Use:   verb,
		Short: short,
		Long: short + `, of single ones with --feature, or of all to those of a release with --release-version. All change or none
does.`,
		Example: fmt.Sprintf("  gregor feature %s --feature group.version=1\n  gregor feature %s --release-version 4.2 --dry-run", verb, verb),
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			levels, err := parseFeatures(features)
			if err != nil {
				return usageError(cmd, "%w", err)
			}
			if len(levels) != len(features) {
				return usageError(cmd, "a feature is named twice")
			}
			switch {
			case release != "" && (len(features) > 0 || metadataVersion != ""):
				return usageError(cmd, "--release-version says it all: leave --feature and --metadata out")
			case release != "":
				levels, err = releaseLevels(release, how == client.Upgrade)
			case metadataVersion != "":
				var v metadata.Version
				v, err = metadata.ParseVersion(metadataVersion)
				levels[metadata.FeatureMetadataVersion] = int16(v)
			case len(features) == 0:
				err = fmt.Errorf("name at least one feature to %s", verb)
			}
			if err != nil {
				return usageError(cmd, "%w", err)
			}
			if unsafe {
				how = client.UnsafeDowngrade
			}
			return updateFeatures(cmd.Context(), e, c, verb, levels, how, dryRun, output)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&features, "feature", "f", nil, "a feature and its new level, `name=level`; may be given several times")
	f.StringVarP(&release, "release-version", "r", "", "the `release` whose levels all features are to have, such as 3.9 or 4.4-IV2")
	f.StringVar(&metadataVersion, "metadata", "", "the `release` of metadata.version alone")
	if err := f.MarkDeprecated("metadata", "use --feature or --release-version"); err != nil {
		panic(err)
	}
	if how != client.Upgrade {
		f.BoolVar(&unsafe, "unsafe", false, "go down even if metadata is lost for it")
	}
	f.BoolVar(&dryRun, "dry-run", false, "only say whether it would work")
	outputFlag(cmd, &output)
	return cmd
}

func newFeatureDisable(e *Env, c *connection) *cobra.Command {
	var features []string
	var unsafe, dryRun bool
	var output string
	cmd := &cobra.Command{
		Use:     "disable",
		Short:   "Turn features off, which is level 0",
		Example: "  gregor feature disable --feature share.version",
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			levels := map[string]int16{}
			for _, f := range features {
				levels[f] = 0
			}
			if len(levels) == 0 || len(levels) != len(features) {
				return usageError(cmd, "name at least one feature to disable, and none twice")
			}
			how := client.SafeDowngrade
			if unsafe {
				how = client.UnsafeDowngrade
			}
			return updateFeatures(cmd.Context(), e, c, "disable", levels, how, dryRun, output)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&features, "feature", "f", nil, "the `name` of a feature; may be given several times")
	f.BoolVar(&unsafe, "unsafe", false, "turn it off even if metadata is lost for it")
	f.BoolVar(&dryRun, "dry-run", false, "only say whether it would work")
	outputFlag(cmd, &output)
	return cmd
}

func updateFeatures(ctx context.Context, e *Env, c *connection, verb string, levels map[string]int16, how client.FeatureUpgrade, dryRun bool, output string) error {
	return c.do(ctx, e, func(ctx context.Context, cl *client.Client) error {
		err := cl.UpdateFeatures(ctx, levels, how, dryRun)
		var answer *client.Error
		if err != nil && !errors.As(err, &answer) {
			return err
		}
		type row struct {
			Feature string `json:"feature"`
			Level   int16  `json:"level"`
			Done    bool   `json:"done"`
			Error   string `json:"error,omitempty"`
		}
		var rows []row
		for _, name := range sorted(levels) {
			to := fmt.Sprintf(" %s to %d", name, levels[name])
			past := fmt.Sprintf("%sd to %d", verb, levels[name])
			if verb == "disable" {
				to, past = " "+name, "disabled"
			}
			r := row{Feature: name, Level: levels[name], Done: err == nil && !dryRun}
			could, was := "Could not ", " was "
			if dryRun {
				could, was = "Can not ", " can be "
			}
			line := name + was + past + "."
			if err != nil {
				r.Error = said(err)
				line = could + verb + to + ". " + r.Error
			}
			rows = append(rows, r)
			if output != "json" {
				fmt.Fprintln(e.Stdout, line)
			}
		}
		if output == "json" {
			if err := printJSON(e.Stdout, rows); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("%d out of %d operation(s) failed", len(levels), len(levels))
		}
		return nil
	})
}

// said is what a broker said of an error, or the error if it said nothing or wasn't asked.
func said(err error) string {
	var e *client.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	if e.Message != "" {
		return strings.TrimSpace(e.Message)
	}
	return e.Name
}
