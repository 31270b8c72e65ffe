// Package pages runs the commands of the documentation as they are written, in order,
// and compares what they print with what a page shows.
//
// A fence with the info string `console` holds commands, each after `$ `, and what
// they print. `file=NAME` on a fence writes its content to that file, `append=NAME` to
// its end. A fence with the word norun is not run, for a reason that unrun gives.
//
// Every page has a directory of its own, in which the paths of a host (/tmp,
// /var/lib/meridian, /etc/meridian, /run/meridian) are, and servers listen on ports of
// their choice. On pages about running servers (live), values of the moment are
// compared by their form: see moment.
package pages
