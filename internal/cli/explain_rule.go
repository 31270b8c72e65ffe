package cli

import (
	"strings"

	"meridian/docs/semantics"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

// isRule reports whether an argument of explain is the number of a rule: §, §3,
// §3.3 or 3.3. No kind starts with a digit.
func isRule(arg string) bool {
	return strings.HasPrefix(arg, "§") || arg != "" && arg[0] >= '0' && arg[0] <= '9'
}

// ruleView is a rule as JSON.
type ruleView struct {
	Rule  string `json:"rule"`
	Title string `json:"title"`
	Text  string `json:"text,omitempty"`
}

// explainRule prints the rule with a number, or lists all rules for "§".
func (a *app) explainRule(f print.Format, number string) error {
	number = strings.TrimPrefix(number, "§")
	if number == "" {
		return a.explainRules(f, "", semantics.Rules())
	}
	rule, ok := semantics.Find(number)
	if !ok {
		nearest := semantics.Nearest(number)
		return exit.Usagef("rule §%s not found: the nearest is §%s (%s); `meridian explain §` lists the rules",
			number, nearest.Number, nearest.Title)
	}
	view := ruleView{Rule: rule.Number, Title: rule.Title, Text: rule.Plain()}
	switch {
	case f.Structured():
		return a.WriteValue(f, view)
	case f == print.FormatName:
		return a.Println("§" + rule.Number)
	}
	page := "§" + rule.Number + " " + rule.Title + "\n\n" + view.Text + "\n"
	if !rule.Chapter() {
		return a.Output([]byte(page))
	}
	var sections []semantics.Rule
	for _, r := range semantics.Rules() {
		if strings.HasPrefix(r.Number, rule.Number+".") {
			sections = append(sections, r)
		}
	}
	return a.explainRules(f, page+"\n", sections)
}

// explainRules lists rules below a text.
func (a *app) explainRules(f print.Format, above string, rules []semantics.Rule) error {
	views := make([]ruleView, len(rules))
	names := make([]string, len(rules))
	t := &print.Table{Header: []string{"RULE", "TITLE"}}
	for i, r := range rules {
		views[i] = ruleView{Rule: r.Number, Title: r.Title}
		names[i] = "§" + r.Number
		t.Add(names[i], r.Title)
	}
	switch {
	case f.Structured():
		return a.WriteValue(f, map[string]any{"items": views})
	case f == print.FormatName:
		return a.Println(strings.Join(names, "\n"))
	}
	return a.Output([]byte(above + t.String(a.Columns())))
}
