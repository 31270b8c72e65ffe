package vocabulary

// A rule forbids a word and names what to write instead.
type rule struct {
	// pattern is matched against lines in lower case, where identifiers are
	// split into their words.
	pattern string
	instead string
	// allowed are files and directories where the word is the right one.
	allowed []string
}

// rules are the words that docs/glossary.md replaces. A rule names the whole
// word and its forms; a verb and a noun of one spelling share a rule.
var rules = []rule{
	// People and places for parts of the system.
	{pattern: `strangers?`, instead: "unauthenticated client, unknown server"},
	{pattern: `whoever`, instead: "the caller, the client, a server that"},
	{pattern: `somebody|someone`, instead: "a caller, a client, an operator"},
	{pattern: `nobody|no one`, instead: "no client, no server; the passive"},
	{pattern: `anybody|everybody`, instead: "any client, every server; all"},
	{pattern: `rooms?|roomy|roomier|roomiest`, instead: "package; space"},
	{pattern: `house|household`, instead: "project", allowed: []string{"internal/policy/testdata"}},
	{pattern: `doors?|doorways?`, instead: "listener; the dataplane service"},
	{pattern: `knock(s|ed|ing)?`, instead: "connect"},
	{pattern: `crowd(s|ed)?`, instead: "burst, load"},
	{pattern: `weathers?`, instead: "fault profile", allowed: []string{"internal/policy", "internal/resource"}},
	{pattern: `calm(s|ed)?`, instead: "idle"},
	{pattern: `twins?`, instead: "copy, pair"},
	{pattern: `whereabouts`, instead: "address"},
	{pattern: `applicants?`, instead: "joining server"},
	{pattern: `lonel(y|iness)`, instead: "isolated, isolation"},
	{pattern: `astray`, instead: "misrouted"},

	// Advice that could destroy the only copy of something.
	{pattern: `empty (its|the|their|your|that|this) (old )?(data )?director(y|ies)|with an empty (data )?directory`, instead: "a new data directory: the old one may be the only copy"},

	// Leadership, elections, membership.
	{pattern: `(the|its|this|a) lead`, instead: "leadership"},
	{pattern: `(take|set|wait|verify|may|tell) lead`, instead: "leadership, canLead"},
	{pattern: `voteless`, instead: "non-voter"},
	{pattern: `stands? for election`, instead: "campaign"},

	// Verbs of people for processes.
	{pattern: `mend(s|ed|ing)?`, instead: "fix, repair"},
	{pattern: `beckon(s|ed|ing)?`, instead: "wake"},
	{pattern: `murmur(s|ed|ing)?`, instead: "log at debug level", allowed: []string{"internal/resource", "internal/xds", "test/envoy", "test/rows"}},
	{pattern: `estranged?`, instead: "track the handshake"},
	{pattern: `hands out its authority`, instead: "can issue certificates"},
	{pattern: `refuses? to`, instead: "does not; non-goals"},
	{pattern: `believe[sd]?`, instead: "trust, accept"},
	{pattern: `takes? you for`, instead: "the authenticated identity"},
	{pattern: `(hears|heard) (of|from)`, instead: "is notified of, receives from"},
	{pattern: `let(s|ting)? in`, instead: "accept"},
	{pattern: `turn(s|ed|ing)? away`, instead: "refuse"},
	{pattern: `pokes?|poked|kicks?|kicked|nudge[ds]?`, instead: "wake, notify"},
	{pattern: `befalls?|befell`, instead: "happen to"},
	{pattern: `goes on|go on|went on|going on`, instead: "continue"},
	{pattern: `give[sn]? way|gave way|giving way`, instead: "is preempted, is replaced"},

	// Conditions.
	{pattern: `rot|rots|rotten|rotted`, instead: "corrupt, corruption"},
	{pattern: `deaf|mute`, instead: "cannot receive, cannot send"},
	{pattern: `is(n't| not) whole`, instead: "is truncated or corrupt"},
	{pattern: `at hand`, instead: "available"},
	{pattern: `honest(ly)?`, instead: "correct, accurate"},
	{pattern: `truly`, instead: "correctly"},
	{pattern: `in vain`, instead: "without effect"},

	// Documents that are not in the repository.
	{pattern: `seed 0+`, instead: "docs/semantics, docs/contract.md, or nothing"},
	{pattern: `rooms beyond`, instead: "packages"},
}
