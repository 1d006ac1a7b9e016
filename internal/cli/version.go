package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// KafkaVersion is the release of Kafka whose protocol, formats and features this is.
const KafkaVersion = "4.4.0"

func newVersion(e *Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print gregor's version and the Kafka release it is compatible with",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Kafka    string `json:"kafka"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{e.Version, e.Revision, KafkaVersion, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if output == "json" {
				return json.NewEncoder(e.Stdout).Encode(v)
			}
			fmt.Fprintf(e.Stdout, "gregor %s", v.Version)
			if v.Revision != "" {
				fmt.Fprintf(e.Stdout, " (%s)", v.Revision)
			}
			fmt.Fprintf(e.Stdout, ", compatible with Kafka %s, %s %s\n", v.Kafka, v.Go, v.Platform)
			return nil
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// outputFlag adds --output to a command whose output is data.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "text for people or json for programs")
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if *output != "text" && *output != "json" {
			return usageError(cmd, "--output is text or json, not %q", *output)
		}
		if check != nil {
			return check(cmd, args)
		}
		return nil
	}
}
