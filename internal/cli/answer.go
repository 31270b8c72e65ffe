package cli

// printAnswer prints the JSON document of an answer as it came, or rendered
// from it for people.
func (a *app) printAnswer(f format, about subject, document []byte) error {
	return a.writeDocument(f, document)
}
