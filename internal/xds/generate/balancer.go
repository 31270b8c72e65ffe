package generate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/xds"
)

// The bounds of a hash ring that a client accepts, and its smallest ring by default.
const (
	maxRing = 8 << 20
	minRing = 1024
)

// balancer is where the configuration of a route says how endpoints are chosen.
const balancer policy.Pointer = "/loadBalancer"

// LeastRequest has a cluster choose the endpoint with the fewest requests.
func LeastRequest(cluster *clusterv3.Cluster, c *Conf) []xds.Origin {
	cluster.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	origins := c.Origin("/lbPolicy", balancer+"/leastRequest")
	if n, ok := c.Number(balancer + "/leastRequest/choiceCount"); ok {
		cluster.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{
			ChoiceCount: wrapperspb.UInt32(max(2, uint32(n))),
		}}
		origins = append(origins, c.Origin("/leastRequestLbConfig/choiceCount", balancer+"/leastRequest/choiceCount")...)
	}
	return origins
}

// RingHash has a cluster choose an endpoint by a hash of the request. The size of the ring
// is brought within what clients accept; of two bounds that contradict each other, the
// upper one holds.
func RingHash(cluster *clusterv3.Cluster, c *Conf) []xds.Origin {
	cluster.LbPolicy = clusterv3.Cluster_RING_HASH
	origins := c.Origin("/lbPolicy", balancer+"/ringHash")
	least, hasLeast := c.Number(balancer + "/ringHash/minRingSize")
	most, hasMost := c.Number(balancer + "/ringHash/maxRingSize")
	ring := &clusterv3.Cluster_RingHashLbConfig{}
	if hasLeast || hasMost {
		if !hasLeast {
			least = minRing
		}
		if !hasMost {
			most = maxRing
		}
		most = min(max(most, 1), maxRing)
		ring.MinimumRingSize = wrapperspb.UInt64(uint64(min(max(least, 1), most)))
		ring.MaximumRingSize = wrapperspb.UInt64(uint64(most))
	}
	cluster.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: ring}
	if hasLeast {
		origins = append(origins, c.Origin("/ringHashLbConfig/minimumRingSize", balancer+"/ringHash/minRingSize")...)
	}
	if hasMost {
		origins = append(origins, c.Origin("/ringHashLbConfig/maximumRingSize", balancer+"/ringHash/maxRingSize")...)
	}
	return origins
}
