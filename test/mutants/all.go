package mutants

// all are the mutants, each with the cheapest tests that detect it. The ids in
// breaks are those of docs/testing.md.
var all = []mutant{
	{
		name: "ack-before-sync", breaks: "I1: log entries are acknowledged when they are on the disk",
		edits: []edit{{"s := newLog(file)\n\tif s.first, s.last", "s := newLog(&bufferedLog{LogFile: file})\n\tif s.first, s.last"}}, adds: "buffered_log.go",
		pkg: "./internal/consensus", run: "TestKillLosesNothing",
	},
	{
		name: "vote-not-stored", breaks: "I1: a server remembers its vote across a restart",
		edits: []edit{{"s := newLog(file)\n\tif s.first, s.last", "s := newLog(unstoredVotes{file})\n\tif s.first, s.last"}}, adds: "unstored_votes.go",
		pkg: "./internal/consensus", run: "TestUnsavedTermAndVote",
	},
	{
		name: "skip-checksum", breaks: "I2: a log entry whose checksum is wrong is not read",
		edits: []edit{{"if log.Index != index || entryChecksum(log)", "if false && entryChecksum(log)"}},
		pkg:   "./internal/consensus", run: "TestDamagedEntry",
	},
	{
		name: "time-from-clock", breaks: "I2: the state machine depends on the log alone",
		edits: []edit{{"result := f.st.Apply(", "txn.Time = time.Now()\n\tresult := f.st.Apply("}}, imports: "time",
		pkg: "./internal/consensus", run: "TestDeterminism",
	},
	{
		name: "forget-request-id", breaks: "I9: a repeated request takes effect once",
		edits: []edit{{"s.requests.find(txn.RequestID); ok {", "s.requests.find(txn.RequestID); ok && false {"}},
		pkg:   "./internal/store", run: "TestStoreEqualsModel",
	},
	{
		name: "read-unverified", breaks: "a leader reads only after a majority has confirmed it",
		edits: []edit{{"committed := n.committed()\n", "committed := n.committed()\n\tif true {\n\t\treturn committed, term, nil\n\t}\n"}},
		pkg:   "./internal/consensus", run: "TestAStaleLeaderRefusesReads",
	},
	{
		name: "read-unapplied", breaks: "a follower reads only after it has applied what the leader had committed",
		edits: []edit{{"if n.st.Revision() >= rev {", "if true || n.st.Revision() >= rev {"}},
		pkg:   "./internal/consensus", run: "TestReadsSeeWhatWasAcknowledgedElsewhere",
	},
	{
		name: "serve-before-caught-up", breaks: "a leader serves only after it has applied what earlier leaders committed",
		edits: []edit{{"if err := n.proposeEmpty(); err != nil {\n\t\treturn err\n\t}\n\tif err := n.nameEpoch(); err != nil {\n\t\treturn err\n\t}\n", ""}},
		pkg:   "./internal/consensus", run: "TestRestartKeepsEverything",
	},
	{
		name: "async-heartbeat", breaks: "heartbeats are handled in raft's main loop (hashicorp/raft#695)",
		edits: []edit{{"SetHeartbeatHandler(func(raft.RPC)) {}", "SetHeartbeatHandler(handle func(raft.RPC)) {\n\tt.NetworkTransport.SetHeartbeatHandler(handle)\n}"}},
		pkg:   "./internal/raftnet", run: "TestHeartbeatsStayInLine",
	},
	{
		name: "ended-stream-waits", breaks: "a stream that the global ends is over soon, also where the zone does not react",
		edits: []edit{{"time.AfterFunc(fenceTimeout, c.cancel)", "time.AfterFunc(10*fenceTimeout, c.cancel)"}},
		pkg:   "./internal/sync", run: "TestStreamsWithoutHello",
	},
	{
		name: "token-outlived", breaks: "the stream of a zone ends with its token",
		edits: []edit{{"deadline = now.Add(left) // by", "_ = left // by"}},
		pkg:   "./internal/sync", run: "TestAZonesStreamEndsWithItsToken",
	},
	{
		name: "stale-preparation", breaks: "a policy counts as it is, not as it was compiled ahead",
		edits: []edit{{"return f != nil && f.resource == r", "return f != nil"}},
		pkg:   "./internal/policy", run: "TestPreparedForAnotherViewHasNoEffect",
	},
	{
		name: "prepared-stays", breaks: "a policy that is no more has no effect, though it was compiled ahead",
		edits: []edit{{"if filed > len(resources)-len(others) {", "if false {"}},
		pkg:   "./internal/policy", run: "TestPreparedForAnotherViewHasNoEffect",
	},
	{
		name: "heartbeats-wait", breaks: "a slow disk costs no leader its leadership",
		edits: []edit{{"return isHeartbeat(beat) && beat.Term", "return false && beat.Term"}},
		pkg:   "./internal/raftnet", run: "TestHeartbeatsDuringAWrite",
	},
	{
		name: "commit-untaken", breaks: "a follower commits only entries that it has from their leader",
		edits: []edit{{"index := min(known.index, lastOf(r).index)", "index := known.index"}},
		pkg:   "./internal/raftnet", run: "TestRaftIsToldWhatALeaderSays",
	},
	{
		name: "raft-paces-entries", breaks: "L1: a member that is back is sent entries at once",
		edits: []edit{{"send = w.insist(id, target, resp, send)", "_ = w.insist"}},
		pkg:   "./internal/raftnet", run: "TestEntriesAreSentAgain",
	},
	{
		name: "voters-asked-once", breaks: "L1: a voter that comes back during an election is asked for its vote",
		edits: []edit{{"if err == nil || !w.campaigning(args.Term) {", "if true {"}},
		pkg:   "./internal/raftnet", run: "TestVotersAreAskedAgain",
	},
	{
		name: "heartbeats-of-anyone", breaks: "no heartbeat that may change the term overtakes entries",
		edits: []edit{{"beat.Term == term && string(beat.ID) == leader", "string(beat.ID) != \"\" && leader != \"\""}},
		pkg:   "./internal/raftnet", run: "TestHeartbeatsDuringAWrite",
	},
	{
		name: "restore-keeps-epoch", breaks: "I4: a restore begins a new incarnation",
		edits: []edit{{"next := store.Epoch{ClusterID: running.ClusterID,", "if true {\n\t\treturn running\n\t}\n\tnext := store.Epoch{ClusterID: running.ClusterID,"}},
		pkg:   "./internal/consensus", run: "TestRestoreBringsBackWhatWasSaved",
	},
	{
		name: "lost-disk-votes", breaks: "I1: a server that lost its disk has no vote",
		edits: []edit{
			{"if disk == \"\" {\n\t\treturn raft.ServerID(name)", "if true || disk == \"\" {\n\t\treturn raft.ServerID(name)"},
			{"if last == 0 && term == 0 {", "if false && last == 0 && term == 0 {"},
		},
		pkg: "./internal/consensus", run: "TestAVoteWithoutItsLogDoesNotCount",
	},
	{
		name: "drop-on-resume", breaks: "I6: a zone that resumes receives every batch that it missed",
		edits: []edit{{
			"w.Mode, p.phase, p.cursor = syncv1.Mode_MODE_RESUME, phaseFeed, from\n",
			"w.Mode, p.phase, p.cursor = syncv1.Mode_MODE_RESUME, phaseFeed, from\n" +
				"\t\tif missed, ok := p.feed.after(from, 1, nil); ok && len(missed) > 0 {\n\t\t\tp.cursor = missed[0].revision\n\t\t}\n",
		}},
		pkg: "./internal/sync", run: "TestResumeContinuesAtTheZonesRevision",
	},
	{
		name: "resume-across-epochs", breaks: "I3: a revision means something in its own epoch only",
		edits: []edit{{"known := h.Epoch != nil && theirs == at.epoch", "known := h.Epoch != nil"}},
		pkg:   "./internal/sync", run: "TestARevisionIsOfItsEpoch",
	},
	{
		name: "publish-before-persist", breaks: "I4: a zone's readers see what is on its disk",
		edits: []edit{{
			"err = r.save(writes)\n\tif preparing.Wait(); err != nil {\n\t\treturn err\n\t}\n\tif err := r.publish(commits); err != nil {",
			"preparing.Wait()\n\tif err := r.publish(commits); err != nil {\n\t\treturn err\n\t}\n\tif err := r.save(writes); err != nil {",
		}},
		pkg: "./internal/sync", run: "TestFailedDisk",
	},
	{
		name: "adopt-before-durable", breaks: "I4: a zone does not acknowledge what a crash may take back",
		edits: []edit{{"if !proto.Equal(r.state, r.saved) {", "if false && !proto.Equal(r.state, r.saved) {"}},
		pkg:   "./internal/sync", run: "TestFailedSync",
	},
	{
		name: "adopt-without-showing", breaks: "I3: a zone serves what it says it holds",
		edits: []edit{{"if r.verify() != nil {", "if false && r.verify() != nil {"}},
		pkg:   "./internal/sync", run: "TestFailedSync",
	},
	{
		name: "ack-while-writing", breaks: "I3: a zone acknowledges what is on its disk",
		edits: []edit{{
			"if err := s.replica.commit(commits); err != nil {",
			"if n := len(commits); n > 0 {\n\t\tm.persisted(commits[n-1])\n\t\tif err := s.enqueue(ctx, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: m.acknowledge(time.Now())}}); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\tif err := s.replica.commit(commits); err != nil {",
		}},
		pkg: "./internal/sync", run: "TestAcknowledgedWhenDurable",
	},
	{
		name: "ack-put-off", breaks: "L4: what a zone puts off to acknowledge holds back no change",
		edits: []edit{{" || consumed-p.acked >= ackBytes", ""}},
		pkg:   "./internal/sync", run: "TestWindowIsAcknowledgedInTime",
	},
	{
		name: "wait-unprompted", breaks: "L2: a client that waits for zones learns at once that they have a change",
		edits: []edit{{"s.prompt(floor)", "_ = floor"}},
		pkg:   "./internal/sync", run: "TestWaitIsAcknowledgedAtOnce",
	},
	{
		name: "quarantine-outlives", breaks: "I3: a deletion takes the quarantined bytes with it",
		edits: []edit{{
			"entries = append(entries, Entry{Bucket: string(quarantineBucket), Key: key})\n\tif w.raw == nil {",
			"if w.raw != nil {\n\t\tentries = append(entries, Entry{Bucket: string(quarantineBucket), Key: key})\n\t}\n\tif w.raw == nil {",
		}},
		pkg: "./internal/sync", run: "TestDeletedWhileInQuarantine",
	},
	{
		name: "rollout-hides-writes", breaks: "a rollout is shown in place of the state that it was made for",
		edits: []edit{{"taken || base(key).Version != changes[i].Replaces {", "taken {"}},
		pkg:   "./internal/sync", run: "TestRolloutsHideNoWrites",
	},
	{
		name: "rollout-shown-in-part", breaks: "I5: a zone shows all of a rollout or nothing",
		edits: []edit{{"holds = false\n\t\t}\n\t}\n\tif !holds {\n\t\treturn\n\t}\n", "holds = false\n\t\t}\n\t}\n\tif !holds && len(changes) < 2 {\n\t\treturn\n\t}\n"}},
		pkg:   "./internal/sync", run: "TestRolloutsHideNoWrites",
	},
	{
		name: "rollout-loses-what-is-hidden", breaks: "I3: what a zone received below a rollout is there when the rollout is over",
		edits: []edit{{"h.good, h.term = res, sum\n", "if _, hidden := r.overlay.Get(key); hidden && res != nil {\n\t\treturn\n\t}\n\th.good, h.term = res, sum\n"}},
		pkg:   "./internal/sync", run: "TestRolloutsHideNoWrites",
	},
	{
		name: "rollout-abort-leaves-some", breaks: "an aborted rollout leaves nothing in a zone",
		edits: []edit{{"range []*overlay.Overlay{r.overlay, next} {", "range []*overlay.Overlay{next} {"}},
		pkg:   "./internal/sync", run: "TestAbortEqualsNeverBegun",
	},
	{
		name: "rollout-ends-with-a-restart", breaks: "I3: what a zone shows follows from its disk alone",
		edits: []edit{{"m.showRollouts(func(resource.Key) {})\n", ""}},
		pkg:   "./internal/sync", run: "TestRolloutsSurvive",
	},
	{
		name: "bookmark-ahead", breaks: "I7: a bookmark is of what was sent",
		edits: []edit{{"if at.last > p.cursor || at.head < p.cursor ||", "if at.head < p.cursor ||"}},
		pkg:   "./internal/sync", run: "TestBookmarkOfWhatWasSent",
	},
	{
		name: "stays-after-leaving", breaks: "a zone is shown as connected while it has a stream",
		edits: []edit{{"c.server.dispatcher.remove(c)\n\tc.leave()\n", "c.server.dispatcher.remove(c)\n"}},
		pkg:   "./internal/sync", run: "TestConnectedMeansAStream",
	},
	{
		name: "greets-in-the-past", breaks: "I4: a zone is not greeted as of an epoch that has ended",
		edits: []edit{{"!greeting && s.feed.position().head >= begin", "!greeting && begin >= 0"}},
		pkg:   "./internal/sync", run: "TestZonesAreGreetedInThePresent",
	},
	{
		name: "follows-either-history", breaks: "I4: of two histories of one incarnation the operator chooses",
		edits: []edit{{"theirs.ClusterID == ours.ClusterID && theirs.Incarnation < ours.Incarnation", "theirs.ClusterID == ours.ClusterID && theirs.Incarnation <= ours.Incarnation"}},
		pkg:   "./internal/sync", run: "TestOfTwoHistoriesTheOperatorChooses",
	},
	{
		name: "clock-forgets", breaks: "I9: a clock that jumps does not have request ids forgotten",
		edits: []edit{{"min(r.time.Sub(w.now), w.bounds.MaxAge/3)", "r.time.Sub(w.now)"}},
		pkg:   "./internal/store", run: "TestEntriesApplyAsTheyDid",
	},
	{
		name: "applies-past-the-unknown", breaks: "I2: nothing is applied after an entry that cannot be",
		edits: []edit{{"if err := f.halted.err(); err != nil {\n\t\treturn err\n\t}\n\tif f.synced", "if f.synced"}},
		pkg:   "./internal/consensus", run: "TestUndecodableEntryStops",
	},
	{
		name: "snapshot-unscreened", breaks: "I1: a follower never goes back to a snapshot of what it has applied",
		edits: []edit{{"request.Term >= r.CurrentTerm() && request.LastLogIndex <= r.AppliedIndex()", "false && request.LastLogIndex <= r.AppliedIndex()"}},
		pkg:   "./internal/consensus", run: "TestSnapshotOfAppliedEntries",
	},
	{
		name: "hands-over-to-the-silent", breaks: "only a server that answers takes over",
		edits: []edit{{"&& n.endpoint.Answered(s.ID, term, asked)", "&& asked > 0"}},
		pkg:   "./internal/consensus", run: "TestAnySuccessorAnswers",
	},
	{
		name: "entries-in-one-piece", breaks: "no follower copies a large entry again and again",
		edits: []edit{{"for len(data) > maxData {", "for len(data) > maxMessage<<4 {"}},
		pkg:   "./internal/raftnet", run: "TestMessagesAreBoundedInBytes",
	},
	{
		name: "large-entries-stay", breaks: "the file of an entry is removed with it",
		edits: []edit{{"first <= index && index <= last {", "first < index && index <= last {"}},
		pkg:   "./internal/raftlog", run: "TestLargeEntriesAreWrittenOnce",
	},
	{
		name: "large-entry-unsynced", breaks: "I1: the file of an entry is on the disk before the entry",
		edits: []edit{{"if err == nil {\n\t\terr = b.disk.sync(f)\n\t}\n", ""}},
		pkg:   "./internal/raftlog", run: "TestPowerLossAndLargeEntries",
	},
	{
		name: "large-entry-unnamed", breaks: "I1: the name of an entry's file is on the disk before the entry",
		edits: []edit{{"err := b.disk.syncDir(b.large())", "err := error(nil)"}},
		pkg:   "./internal/raftlog", run: "TestPowerLossAndLargeEntries",
	},
	{
		name: "large-file-after-entry", breaks: "I1: the file of an entry is on the disk before the entry, not after it",
		edits: []edit{
			{"\tif len(written) > 0 {\n\t\terr := b.disk.syncDir(b.large())", "\terr := b.BoltStore.StoreLogs(out)\n\tif len(written) > 0 {\n\t\terr := b.disk.syncDir(b.large())"},
			{"\terr := b.BoltStore.StoreLogs(out)\n\tif isNoSpace(err)", "\tif isNoSpace(err)"},
		},
		pkg: "./internal/raftlog", run: "TestPowerLossAndLargeEntries",
	},
	{
		name: "large-file-removed-first", breaks: "I1: the file of an entry is removed after the entry",
		edits: []edit{
			{"\tif err := b.BoltStore.DeleteRange(first, last); err != nil {\n\t\treturn err\n\t}\n\tnames, _", "\tnames, _"},
			{"b.remove([]string{name})\n\t\t}\n\t}\n\treturn nil\n", "b.remove([]string{name})\n\t\t}\n\t}\n\treturn b.BoltStore.DeleteRange(first, last)\n"},
		},
		pkg: "./internal/raftlog", run: "TestPowerLossAndLargeEntries",
	},
	{
		name: "journal-unsynced", breaks: "I1: a record of the journal is on the disk before the entries are acknowledged",
		edits: []edit{{"if err := j.disk.sync(j.file); err != nil {\n\t\treturn err\n\t}\n", ""}},
		pkg:   "./internal/raftlog", run: "TestPowerLossAndTheJournal",
	},
	{
		name: "ahead-acknowledged", breaks: "I1: an entry is acknowledged once it is on the leader's disk",
		edits: []edit{{"if f.synced != nil {", "if false && f.synced != nil {"}},
		pkg:   "./internal/consensus", run: "TestNothingIsCommittedThatIsNotOnTheLeadersDisk",
	},
	{
		name: "ahead-skipped", breaks: "I2: nothing is applied after an entry that is not",
		edits: []edit{{"if s.OnDisk(index) == index {", "if false && s.OnDisk(index) == index {"}},
		pkg:   "./internal/raftlog", run: "TestASyncThatEndsWellBesideAFailure",
	},
	{
		name: "ahead-committed", breaks: "a follower applies an entry once it is on the leader's disk, too",
		edits: []edit{{"index := w.onDisk(r.LeaderCommitIndex)", "index := r.LeaderCommitIndex"}},
		pkg:   "./internal/consensus", run: "TestNothingIsCommittedThatIsNotOnTheLeadersDisk",
	},
	{
		name: "ahead-read", breaks: "a read waits for no entry that is not on the leader's disk",
		edits: []edit{{"resource.Revision(n.log.OnDisk(n.raft.CommitIndex()))", "resource.Revision(n.raft.CommitIndex())"}},
		pkg:   "./internal/consensus", run: "TestNothingIsCommittedThatIsNotOnTheLeadersDisk",
	},
	{
		name: "ahead-membership", breaks: "a change of membership is on the leader's disk before it is sent",
		edits: []edit{{"if log.Type != raft.LogCommand {", "if false && log.Type != raft.LogCommand {"}},
		pkg:   "./internal/raftlog", run: "TestWhatIsOnDiskBeforeItIsSent",
	},
	{
		name: "journal-keeps-removed", breaks: "entries that were removed from the log do not come back from the journal",
		edits: []edit{{"\treturn j.journal.reset()\n", "\treturn nil\n"}},
		pkg:   "./internal/raftlog", run: "TestPowerLossAndTheJournal",
	},
	{
		name: "journal-page-in-part", breaks: "a start knows of the newest record of the journal by any sector of it",
		edits: []edit{{"for at := 0; at < len(pages); at += sectorSize {", "for at := 0; len(content) > 0; at += sectorSize {"}},
		pkg:   "./internal/raftlog", run: "TestPowerLossAndTheJournal",
	},
	{
		name: "journal-number-twice", breaks: "no two records of the journal have a number",
		edits: []edit{{"\tj.number++\n", "\tj.number = j.previous + 1\n"}},
		pkg:   "./internal/raftlog", run: "TestPowerLossAndTheJournal",
	},
	{
		name: "journal-unmarked", breaks: "a release that knows no journal refuses a directory with entries in one",
		edits: []edit{{"err = j.mark.SetJournaled(true)", "_ = j.mark.SetJournaled"}},
		pkg:   "./internal/raftlog", run: "TestFormatOfADirectoryWithAJournal",
	},
	{
		name: "journal-of-any-log", breaks: "I2: a journal and a log that do not belong together are damage",
		edits: []edit{{"if stored.Term != entries[0].Term {", "if false && stored.Term != entries[0].Term {"}},
		pkg:   "./internal/raftlog", run: "TestJournalOfAnotherLog",
	},
	{
		name: "empty-batch-ends-restore", breaks: "a restore is interrupted by changes only",
		edits: []edit{{"if txn.Restore != nil {\n\t\treturn s.applyRestoreLocked(rev, txn)\n\t}\n", "if txn.Restore != nil {\n\t\treturn s.applyRestoreLocked(rev, txn)\n\t}\n\ts.restoring = nil\n"}},
		pkg:   "./internal/store", run: "TestNothingDoesNotInterruptARestore",
	},
	{
		name: "pauses-are-stalls", breaks: "a server that was stopped does not take its disk for one that hangs",
		edits: []edit{{"w.waited += min(now.Sub(w.last), 2*w.tick())", "w.waited += now.Sub(w.last)"}},
		pkg:   "./internal/raftlog", run: "TestPausesAreNoStalls",
	},
	{
		name: "no-wipe-guard", breaks: "I10: a zone does not delete most of what it holds without approval",
		edits: []edit{{"wipe := wipes(len(gone),", "wipe := false && wipes(len(gone),"}},
		pkg:   "./internal/sync", run: "TestWipeGuard",
	},
	{
		name: "sync-secrets", breaks: "I11: zones receive the kinds that are synced and no others",
		edits: []edit{{"return ok && d.Synced\n", "return ok || d.Synced\n"}},
		pkg:   "./internal/sync", run: "TestSyncedKinds",
	},
	{
		name: "routes-before-clusters", breaks: "a proxy has the clusters that it is sent routes to",
		edits: []edit{{"if !ready {\n\t\t\tp.waiting = p.waiting || !stuck\n\t\t\tcontinue\n\t\t}", "_, _ = ready, stuck"}},
		pkg:   "./internal/xds/serve", run: "TestMakeBeforeBreak",
	},
	{
		name: "types-out-of-order", breaks: "clusters are sent before what refers to them",
		edits: []edit{{"for _, typ := range xds.Types {\n\t\tif r, ok := s.send(typ, plans[typ].changes)", "for _, typ := range []xds.Type{xds.Route, xds.Listener, xds.Endpoints, xds.Cluster} {\n\t\tif r, ok := s.send(typ, plans[typ].changes)"}},
		pkg:   "./internal/xds/serve", run: "TestAChangedClusterHasItsEndpointsSentAgain|TestMakeBeforeBreak",
	},
	{
		name: "stale-endpoints", breaks: "a cluster that is sent has its endpoints sent after it",
		edits: []edit{{"e.force = true\n\t\t\t} else if s.cfg.Delta", "_ = e\n\t\t\t} else if s.cfg.Delta"}},
		pkg:   "./internal/xds/serve", run: "TestAChangedClusterHasItsEndpointsSentAgain",
	},
	{
		name: "brought-endpoints-are-enough", breaks: "a cluster that is sent has its endpoints sent after it, also to a client that brings them along",
		edits: []edit{{"told: true, force: owed}", "told: true, force: owed && false}"}},
		pkg:   "./internal/xds/serve", run: "TestEndpointsFollowAClusterThatIsSentBeforeTheyAreBrought",
	},
	{
		name: "empties-what-it-does-not-know", breaks: "endpoints stay for as long as routes may send to them",
		edits: []edit{{"&& (known(e.held) != nil || !e.force):", "&& known(e.held) != nil:"}},
		pkg:   "./internal/xds/serve", run: "TestEndpointsOfBeforeStayUntilRoutesLeadElsewhere",
	},
	{
		name: "removes-before-acceptance", breaks: "nothing is removed before what replaces it is accepted",
		edits: []edit{{"case pending:\n\t\treturn false\n\tcase ref.Type == xds.Listener:", "case pending && now.IsZero():\n\t\treturn false\n\tcase ref.Type == xds.Listener:"}},
		pkg:   "./internal/xds/serve", run: "TestMakeBeforeBreak",
	},
	{
		name: "clusters-do-not-drain", breaks: "a cluster stays while requests to it may be under way",
		edits: []edit{{"due := e.unused.Add(s.cfg.Drain)", "due := e.unused"}},
		pkg:   "./internal/xds/serve", run: "TestMakeBeforeBreak",
	},
	{
		name: "drains-too-early", breaks: "a cluster drains from when the client's last routes to it have gone",
		edits: []edit{{"if typ == xds.Cluster && s.anew {", "if false && s.anew {"}},
		pkg:   "./internal/xds/serve", run: "TestAClusterDrainsFromItsLastUse",
	},
	{
		name: "two-unanswered", breaks: "each type has at most one unanswered response",
		edits: []edit{{"if len(changes) == 0 || t.out != nil {", "if len(changes) == 0 || t.out != nil && s.set == nil {"}},
		pkg:   "./internal/xds/serve", run: "TestEndpointsAndRoutesAloneGoAtOnce",
	},
	{
		name: "stale-nonces-answer", breaks: "a request with an outdated nonce answers nothing",
		edits: []edit{{"return out != nil && out.nonce == r.Nonce", "return out != nil && r.Nonce != \"\""}},
		pkg:   "./internal/xds/serve", run: "TestAnOutdatedNonceChangesSubscriptionsAndNothingElse",
	},
	{
		name: "rejected-is-sent-again", breaks: "a version that a proxy rejected is not sent to it again",
		edits: []edit{{"if found.Resource.Version == r.Version {", "if found.Resource.Version == r.Version && r.Name == \"\" {"}},
		pkg:   "./internal/xds/serve", run: "TestAProxyIsNotSentAgainWhatItRejected",
	},
	{
		name: "rejected-as-a-whole", breaks: "of a rejected response the resource at fault is found, and the others hold",
		edits: []edit{{"case len(out.changes) > 1:", "case len(out.changes) > 1<<20:"}},
		pkg:   "./internal/xds/serve", run: "TestARejectedBatchIsTakenApart",
	},
	{
		name: "not-introduced", breaks: "calls go by new routes once a client of gRPC has their clusters",
		edits: []edit{{"if len(unknown) > 0 {\n\t\t\tspares := maps.Clone(e.variant.spares)\n", "if len(unknown) > 1<<20 {\n\t\t\tspares := maps.Clone(e.variant.spares)\n"}},
		pkg:   "./internal/xds/serve", run: "TestNewClustersAreIntroduced",
	},
	{
		name: "not-kept", breaks: "routes name the clusters that a gRPC client's calls have just left",
		edits: []edit{{"for _, used := range e.live().Uses {", "for _, used := range e.live().Uses[:0] {"}},
		pkg:   "./internal/xds/serve", run: "TestClustersStayNamedAfterCallsHaveLeft",
	},
	{
		name: "introduced-while-given-up", breaks: "a cluster is named again once a gRPC client has given it up",
		edits: []edit{{"missing = missing || s.leaving(used)", "missing = missing || s.leaving(used) && false"}},
		pkg:   "./internal/xds/serve", run: "TestAClusterComesBackOnceItIsGivenUp",
	},
	{
		name: "forgets-who-was-away", breaks: "a gRPC client that connects again keeps what its calls use until its routes lead elsewhere",
		edits: []edit{{"e.held, e.variant, e.again = h.held, h.variant, true", "e.again = h.held != nil"}},
		pkg:   "./internal/xds/serve", run: "TestAGRPCClientThatComesBackKeepsWhatItUses",
	},
	{
		name: "endpoints-that-drain", breaks: "an instance that drains is sent no requests",
		edits: []edit{{"if in.away || taken[at] ||", "if taken[at] ||"}},
		pkg:   "./internal/xds/world", run: "TestEndpointsOfASelector",
	},
	{
		name: "grpc-without-guards", breaks: "a server of gRPC refuses whom permissions deny",
		edits: []edit{{"filters = append(filters, &httpv3.HttpFilter{Name: f.name,", "if f.name == allowFilter {\n\t\t\tcontinue\n\t\t}\n\t\tfilters = append(filters, &httpv3.HttpFilter{Name: f.name,"}},
		pkg:   "./internal/xds/generate/grpc", run: "TestServersDecideAsTheAnswerSays",
	},
	{
		name: "envoy-without-guards", breaks: "an inbound of Envoy refuses whom permissions deny",
		edits: []edit{{"filters = append(trying, filters...)", "filters = trying"}},
		pkg:   "./internal/xds/generate/envoy", run: "TestInboundsDemandCertificates",
	},
	{
		name: "trims-by-the-clock", breaks: "all servers keep the same contents of old revisions",
		edits: []edit{{"p.trim(b.time)", "p.trim(time.Now())"}},
		pkg:   "./internal/store", run: "TestContentsAreBounded",
	},
	{
		name: "snapshot-without-contents", breaks: "a new server gets the contents of old revisions with its snapshot",
		edits: []edit{{"Revision: uint64(m.Revision), Spec: c.before.canonical,", "Revision: uint64(m.Revision),"}},
		pkg:   "./internal/store", run: "TestContentsOfOldRevisions",
	},
	{
		name: "rollback-of-another-state", breaks: "what is written while a rollback is decided is decided on, too",
		edits: []edit{{
			"changed := now.Changed()\n\ttxn := store.Txn{RequestID: d.attempt, Time: b.cfg.Now(), Ops: ops, UnchangedSince: &changed}",
			"txn := store.Txn{RequestID: d.attempt, Time: b.cfg.Now(), Ops: ops}",
		}},
		pkg: "./internal/service/admin", run: "TestRollbackIsDecided",
	},
	{
		name: "rollback-forgets-what-came", breaks: "a rollback leaves exactly the state that there was",
		edits: []edit{{"out[r.Key()] = store.Delete(r.Key())\n", "\n"}},
		pkg:   "./internal/service/admin", run: "TestRollbackOfAnything",
	},
	{
		name: "answers-from-another-past", breaks: "an answer about an earlier state is of that state",
		edits: []edit{{"if a.Revision == b.Revision {\n\t\t\tcontinue", "if a.Revision != 0 {\n\t\t\tcontinue"}},
		pkg:   "./internal/question", run: "TestEarlierStatesAsThen",
	},
	{
		name: "plans-without-deletions", breaks: "what a plan predicts is what comes to be",
		edits: []edit{{"for _, key := range b.Deleted {\n\t\to.changed[key] = nil\n", "for range b.Deleted {\n"}},
		pkg:   "./internal/plan", run: "TestPredictionEqualsWhatComesToBe",
	},
	{
		name: "dead-where-few-are", breaks: "what is called dead changes no answer when it is removed",
		edits: []edit{{"mine.used = true", "mine.used = l.Dataplanes > 1"}},
		pkg:   "./internal/analysis", run: "TestWhatIsDeadMayGo",
	},
	{
		name: "rollouts-hold-nothing", breaks: "what an unfinished rollout is to change, no other write changes",
		edits: []edit{{"if held && by != own && !ended[by] {", "if held && by != own && !ended[by] && own != \"\" {"}},
		pkg:   "./internal/store", run: "TestRolloutsHoldWhatTheyAreToChange",
	},
	{
		name: "rollout-abort-leaves-a-key", breaks: "I3: an aborted rollout leaves nothing in a zone",
		edits: []edit{{
			"\tnext := overlay.Of(r.zone, maps.Values(r.rollouts), r.base, r.overlay)\n\tfor _, o := range []*overlay.Overlay{r.overlay, next} {\n\t\tfor key := range o.All() {\n\t\t\ttouch(key)",
			"\tnext := overlay.Of(r.zone, maps.Values(r.rollouts), r.base, r.overlay)\n\tfor i, o := range []*overlay.Overlay{r.overlay, next} {\n\t\tleft := i == 0\n\t\tfor key := range o.All() {\n\t\t\tif _, still := next.Get(key); left && !still {\n\t\t\t\tleft = false\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\ttouch(key)",
		}},
		pkg: "./test/sim", run: "TestQuiet",
	},
	{
		name: "rollout-completes-twice", breaks: "rollout: the completion of a rollout takes effect once",
		edits: []edit{
			{"if !ok || stored.Status.Phase.Finished() {\n\t\treturn Step{}, nil", "if ok && stored.Status.Phase == resource.RolloutCompleted {\n\t\treturn Step{Next: r}, nil\n\t}\n\tif !ok || stored.Status.Phase.Finished() {\n\t\treturn Step{}, nil"},
			{"txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: c.Key(), Version: c.Replaces})", "_ = c"},
		},
		pkg: "./test/sim", run: "TestQuiet",
	},
	{
		name: "rollouts-do-not-hold", breaks: "rollout: what an unfinished rollout is to change, no other write changes",
		edits: []edit{{"by, held := h.by[key]", "by, held := h.by[key]\n\t\theld = held && own != \"\""}},
		pkg:   "./test/sim", run: "TestQuiet",
	},
	{
		name: "rollout-completes-in-part", breaks: "rollout: a completion writes the whole change",
		edits: []edit{{"ops := make([]store.Op, len(spec.Changes))\n\tfor i := range spec.Changes {", "ops := make([]store.Op, max(1, len(spec.Changes)-1))\n\tfor i := range ops {"}},
		pkg:   "./test/sim", run: "TestQuiet",
	},
	{
		name: "rollout-format", breaks: "every server that applies a rollout holds what it is to change",
		edits: []edit{{"if writesRollout(command) {", "if writesRollout(command) && false {"}},
		pkg:   "./internal/store", run: "TestTheFormatOfRollouts",
	},
	{
		name: "completes-without-the-change", breaks: "a rollout is completed in one transaction with its change",
		edits: []edit{{"txn.Ops = append(txn.Ops, operations(m, spec)...)", "txn.Ops = append(txn.Ops, operations(m, spec)[:0]...)"}},
		pkg:   "./internal/global", run: "TestRolloutsContinueUnderAnotherLeader",
	},
	{
		name: "rollout-of-another-version", breaks: "a rollout is begun of the versions that it was decided on",
		edits: []edit{{"batch.Preconditions = append(slices.Clone(batch.Preconditions), permit.Preconditions...)\n\treturn batch, nil", "batch.Preconditions = append(slices.Clone(batch.Preconditions)[:0], permit.Preconditions...)\n\treturn batch, nil"}},
		pkg:   "./internal/service/admin", run: "TestARolloutIsDecidedOnWhatItReplaces",
	},
	{
		name: "refused-batch-stays", breaks: "a batch that is refused leaves nothing in the entry that it shares",
		edits: []edit{{"} else if err != nil {\n\t\tb.undo(done)\n\t}", "} else if err != nil {\n\t\tb.changes = b.changes[:done]\n\t}"}},
		pkg:   "./internal/store", run: "TestBatchesOfAnEntryAreAppliedAsEntriesOfTheirOwn",
	},
	{
		name: "batches-on-the-old-state", breaks: "a batch that shares an entry is decided on what those before it have left",
		edits: []edit{{"state := b.state()\n", "state := b.from\n"}},
		pkg:   "./internal/store", run: "TestBatchesOfAnEntryAreAppliedAsEntriesOfTheirOwn|TestAccessRulesWithinAnEntry",
	},
	{
		name: "one-key-in-one-entry", breaks: "batches that share an entry write different resources",
		edits: []edit{{"next[key] = entry + 1", "next[key] = entry"}},
		pkg:   "./internal/consensus", run: "TestBatchesOfOneResourceShareNoEntry",
	},
	{
		name: "shares-with-old-servers", breaks: "entries are shared once every member is known to apply them",
		edits: []edit{{"if !slices.ContainsFunc(servers, missing) {", "if true || !slices.ContainsFunc(servers, missing) {"}},
		pkg:   "./internal/consensus", run: "TestNoEntryIsSharedBeforeTheLastUpgrade",
	},
	{
		name: "note-of-another", breaks: "history names the writer of each resource of a shared revision",
		edits: []edit{{"change := pastChange{key: c.Key(), note: by[c.Key()]}", "change := pastChange{key: c.Key()}"}},
		pkg:   "./internal/store", run: "TestBatchesOfAnEntryAreAppliedAsEntriesOfTheirOwn",
	},
	{
		name: "writes-on-any-state", breaks: "the state machine refuses what was decided on another state",
		edits: []edit{{"v.changed > *txn.UnchangedSince {", "false && v.changed > *txn.UnchangedSince {"}},
		pkg:   "./internal/store", run: "TestEntriesApplyAsTheyDid",
	},
}
